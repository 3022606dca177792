#!/usr/bin/env bash
# Entry point of the image `spark`. Spark on Kubernetes starts its pods with the argument `driver` or `executor`, and
# tells an executor by environment variables who it is (org.apache.spark.deploy.k8s.Constants). Other arguments are a
# command of cdc.
set -euo pipefail

case "${1:-}" in
  driver)
    shift
    exec tini -s -- spark-submit --deploy-mode client --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
  executor)
    # SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, …: one option each.
    options=()
    for ((n = 0; ; n++)); do
      name="SPARK_JAVA_OPT_$n"
      [ -n "${!name+set}" ] || break
      options+=("${!name}")
    done
    exec tini -s -- java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
      -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
  *)
    exec tini -s -- cdc "$@"
    ;;
esac
