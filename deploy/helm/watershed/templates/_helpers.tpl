{{- define "watershed.labels" -}}
app.kubernetes.io/name: watershed
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "watershed.secretName" -}}
{{- .Values.secret.name | default (printf "%s-secret" .Release.Name) }}
{{- end }}

{{- define "watershed.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary .Release.Name "default" .Values.serviceAccount.create) }}
{{- end }}

{{- /* The components that run, as JSON: name, image, args, port, options. Fails for values that do not fit together. */}}
{{- define "watershed.components" -}}
{{- $found := list }}
{{- if .Values.capture.enabled }}
{{- $found = append $found (dict "name" "capture" "image" .Values.image.capture "args" (list "run") "port" 8480 "startup" 60 "replicas" .Values.capture.replicas "resources" .Values.capture.resources "own" .Values.capture) }}
{{- end }}
{{- range $name, $sink := .Values.sinks }}
{{- $sink = $sink | default dict }}
{{- if not (hasKey ($.Values.config.sinks | default dict) $name) }}
{{- fail (printf "sinks.%s runs a sink that config.sinks does not have" $name) }}
{{- end }}
{{- $found = append $found (dict "name" (printf "sink-%s" ($name | replace "_" "-")) "image" $.Values.image.sinks "args" (list "sink" "run" $name) "port" 8481 "startup" 120 "replicas" 1 "resources" ($sink.resources | default $.Values.sinkResources) "own" $sink) }}
{{- end }}
{{- if .Values.views.enabled }}
{{- if not .Values.config.views }}
{{- fail "views.enabled is for config.views, which is empty" }}
{{- end }}
{{- $found = append $found (dict "name" "views" "image" .Values.image.sinks "args" (list "view" "run") "port" 8482 "startup" 60 "replicas" 1 "resources" .Values.views.resources "own" .Values.views) }}
{{- end }}
{{- $found | toJson }}
{{- end }}

{{- /* watershed.yml */}}
{{- define "watershed.config" -}}
{{- $http := .Values.config.http | default dict }}
{{- if not (or $http.users $http.insecure) }}
{{- fail "config.http.users is empty: name users and put their tokens into the secret, or set config.http.insecure" }}
{{- end }}
{{- if and $http.users (not (has "probes" $http.open)) }}
{{- fail "config.http.open lacks probes: Kubernetes has no token for /readyz" }}
{{- end }}
{{- $_ := required "config.kafka.bootstrap_servers is empty" (.Values.config.kafka | default dict).bootstrap_servers }}
{{- $_ := required "config.source.tables is empty: name the captured tables" (.Values.config.source | default dict).tables }}
{{- if not (or .Values.secret.name .Values.secret.values) }}
{{- fail "secret.name and secret.values are empty: one of them gives at least CDC__SOURCE__DSN" }}
{{- end }}
{{- $names := list }}
{{- range include "watershed.components" . | fromJsonArray }}
{{- $name := printf "%s-%s" $.Release.Name .name }}
{{- $names = concat $names (list $name (printf "%s.%s" $name $.Release.Namespace) (printf "%s.%s.svc" $name $.Release.Namespace) (printf "%s.%s.svc.cluster.local" $name $.Release.Namespace)) }}
{{- end }}
{{- $made := dict "host" "0.0.0.0" "names" (concat $names ($http.names | default list)) }}
{{- if .Values.http.tlsSecret }}
{{- $_ := set $made "tls" (dict "certificate_file" "/etc/watershed-tls/tls.crt" "key_file" "/etc/watershed-tls/tls.key") }}
{{- end }}
{{- $spark := mergeOverwrite (dict "checkpoint_location" "/var/lib/watershed/checkpoints") (.Values.config.spark | default dict) }}
{{- mergeOverwrite (deepCopy .Values.config) (dict "http" (mergeOverwrite (deepCopy $http) $made) "spark" $spark) | toYaml }}
{{- end }}
