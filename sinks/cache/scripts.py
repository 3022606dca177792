"""The Lua scripts that run inside Redis. Each is atomic there, which the guard by version requires."""

import hashlib
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Script:
    """Lua source, and the name by which EVALSHA calls it."""

    source: str

    @property
    def sha(self) -> str:
        return hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


KEEP: Final = "\0"  # an argument that stands for a lookup key that does not change

# Writes or deletes rows of one table. KEYS[1]: the hash of the table's versions. ARGV, for all rows:
#    1 the shape of the table's keys. If the hash names another one, the script returns false.
#    2 the beginning of the keys of deleted rows' versions. The key with exactly this name exists while any of them
#      does, so that a table without recent deletions costs no GET for each row.
#    3 the lifetime of these keys in ms
#    4 the lifetime of a row's keys in ms; empty: they do not expire
#    5 `string`, `hash`, `document` (a hash of a version and a document), or `none` for a table whose keys are deleted
#      by every change
#    6 the channel and 7 the stream that are notified of changed keys, 8 the stream's length; empty: none
#    9 the table's name
#   10 `live`: rows that are not live stay as they are (used by sweeps)
#   11 in a rebuild: the hash that collects the primary keys of the rows that it writes. A rebuild also writes rows at
#      the version that is held, unless keys are deleted by every change. Empty: no rebuild.
#   12 `keys`: the rows' keys follow. Otherwise each key is KEYS[1] and the text of the primary key.
#   13 the number of lookup keys of each row
#   14 the versions of all rows, 19 digits each
# and then, each for all rows: the texts of the primary keys; the values (a document, or the number of arguments that a
# hash has; empty: the row is deleted); the keys, if 12 says so (empty: as without them); the lookup keys (empty: none,
# KEEP: as before); the fields and values of the hashes. The script builds whatever it can, to keep the arguments short.
# The script returns the numbers of the rows, from 1, at which it left the same or a newer version. A row's version is
# written last, so that a row at which the script fails is written completely by the next attempt.
#
# A lookup key holds the primary key of the row with the highest version among those that have its value. The owner's
# version, read from the hash, guards the lookup key, so the order in which two such rows are written does not matter.
APPLY: Final = Script("""
local call, versions = redis.call, KEYS[1]
if call('HGET', versions, '\\0') ~= ARGV[1] then return false end
local deleted, deleted_ttl, ttl, kind = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local channel, stream, length, table_name, only_live = ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10] == 'live'
local met = ARGV[11]
local rewrites = met ~= '' and kind ~= 'none'
local has_keys, lookup_count, packed = ARGV[12] == 'keys', tonumber(ARGV[13]), ARGV[14]
local count = #packed / 19
local values_at = 14 + count
local lookups_at = values_at + (has_keys and 2 or 1) * count
local part_at = lookups_at + lookup_count * count + 1
local has_deleted, is_marked = call('EXISTS', deleted) == 1, false
local entries = call('HMGET', versions, unpack(ARGV, 15, values_at))
local stale, fresh, has_room = {}, {}, false
for row = 1, count do
  local id, version, value = ARGV[14 + row], string.sub(packed, row * 19 - 18, row * 19), ARGV[values_at + row]
  local first_part, is_live = part_at, value ~= ''
  if kind == 'hash' and is_live then part_at = part_at + tonumber(value) end
  local held = entries[row]
  local dead = has_deleted and not held and call('GET', deleted .. id)
  local newest = held and string.sub(held, 1, 19) or dead
  if met ~= '' and is_live then call('HSET', met, id, '') end
  if (only_live and not held) or (newest and (newest > version or (newest == version and not rewrites))) then
    stale[#stale + 1] = row
  else
    if is_live and not has_room then
      -- A full server refuses a script at its first write that takes memory, unless another write came before.
      call('HSET', versions, '\\0', ARGV[1])
      has_room = true
    end
    local entry = version
    if lookup_count > 0 or (held and #held > 19) then
      local former, lookups, wanted = {}, {}, {}
      if held and #held > 19 then former = cjson.decode(string.sub(held, 20)) end
      for n = 1, lookup_count do
        local name = ARGV[lookups_at + (row - 1) * lookup_count + n]
        if name == '\\0' then name = former[n] or '' end
        lookups[n] = name
        wanted[name] = true
      end
      for _, name in ipairs(former) do
        if name ~= '' and not wanted[name] and (kind == 'none' or call('GET', name) == id) then
          call('DEL', name)
        end
      end
      for _, name in ipairs(lookups) do
        if name ~= '' then
          if kind == 'none' then
            call('DEL', name)
          else
            local owner = call('GET', name)
            local owned = owner and owner ~= id and call('HGET', versions, owner)
            if not owned or string.sub(owned, 1, 19) < version then
              if ttl == '' then call('SET', name, id) else call('SET', name, id, 'PX', ttl) end
            end
          end
        end
      end
      if lookup_count > 0 then entry = version .. cjson.encode(lookups) end
    end
    local key = has_keys and ARGV[values_at + count + row] or ''
    if key == '' then key = versions .. id end
    if not is_live or kind == 'none' then
      call('DEL', key)
    elseif kind == 'string' then
      if ttl == '' then call('SET', key, value) else call('SET', key, value, 'PX', ttl) end
    else
      if kind == 'document' then
        call('HSET', key, 'v', version, 'doc', value)
      else
        call('DEL', key)
        call('HSET', key, unpack(ARGV, first_part, part_at - 1))
      end
      if ttl ~= '' then call('PEXPIRE', key, ttl) end
    end
    if channel ~= '' then call('PUBLISH', channel, key) end
    if stream ~= '' then
      call('XADD', stream, 'MAXLEN', '~', length, '*', 'table', table_name, 'key', key,
        'operation', is_live and 'upsert' or 'delete', 'version', version)
    end
    if not is_live then
      call('HDEL', versions, id)
      if not is_marked then
        call('SET', deleted, '', 'PX', deleted_ttl)
        has_deleted, is_marked = true, true
      end
      call('SET', deleted .. id, version, 'PX', deleted_ttl)
    else
      if lookup_count > 0 or dead then  -- rows that follow look for it; the row never lacks both versions
        call('HSET', versions, id, entry)
        if dead then call('DEL', deleted .. id) end
      else
        fresh[#fresh + 1] = id
        fresh[#fresh + 1] = entry
      end
    end
  end
end
if #fresh > 0 then call('HSET', versions, unpack(fresh)) end
return stale
""")

# Removes rows, or the versions of deleted rows, that are held at exactly the given version. KEYS[1]: the hash of the
# table's versions. ARGV, for all rows: 1 the beginning of the keys of deleted rows' versions; and for each row: the
# text of its primary key, its key, the version. Lookup keys that point to the row are removed with it.
REMOVE: Final = Script("""
local call, versions, deleted = redis.call, KEYS[1], ARGV[1]
for at = 2, #ARGV, 3 do
  local id, key, version = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local held = call('HGET', versions, id)
  if held and string.sub(held, 1, 19) == version then
    if #held > 19 then
      for _, name in ipairs(cjson.decode(string.sub(held, 20))) do
        if name ~= '' and call('GET', name) == id then call('DEL', name) end
      end
    end
    call('HDEL', versions, id)
    call('DEL', key)
  elseif call('GET', deleted .. id) == version then
    call('DEL', deleted .. id)
  end
end
""")

# Tells who owns lookup keys of one table. KEYS[1]: the hash of the table's versions. ARGV: `remove`, or empty; the
# lookup keys. Returns for each of them the text that it holds and what KEYS[1] has of the row with this primary key;
# `remove` deletes those that are stray: of no live row, or not among the lookup keys of its entry. APPLY leaves none.
LOOKUPS: Final = Script("""
local call, answers = redis.call, {}
for at = 2, #ARGV do
  local name = ARGV[at]
  local owner = call('GET', name)
  local entry = owner and call('HGET', KEYS[1], owner)
  if owner and ARGV[1] == 'remove' then
    local is_stray = true
    if entry and #entry > 19 then
      for _, listed in ipairs(cjson.decode(string.sub(entry, 20))) do
        if listed == name then is_stray = false end
      end
    end
    if is_stray then call('DEL', name) end
  end
  answers[#answers + 1] = {owner, entry}
end
return answers
""")

# Removes rows of one table that a rebuild has not seen. KEYS[1]: the hash of the table's versions, KEYS[2]: the hash of
# the rows that were seen. ARGV: for each row the text of its primary key, its entry in the first hash as it was read,
# its key, the number of its lookup keys and these. A row that has changed since is left alone. Returns how many went.
REMOVE_UNSEEN: Final = Script("""
local call, removed, at = redis.call, 0, 1
while at <= #ARGV do
  local id, entry, key, lookup_count = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  if call('HEXISTS', KEYS[2], id) == 0 and call('HGET', KEYS[1], id) == entry then
    for n = 1, lookup_count do
      if call('GET', ARGV[at + 3 + n]) == id then call('DEL', ARGV[at + 3 + n]) end
    end
    call('DEL', key)
    call('HDEL', KEYS[1], id)
    removed = removed + 1
  end
  at = at + 4 + lookup_count
end
return removed
""")

# Lets every later write win against rows of one table. KEYS[1]: the hash of the table's versions. ARGV: the texts of
# the rows' primary keys.
RESET_VERSIONS: Final = Script("""
for _, id in ipairs(ARGV) do
  local entry = redis.call('HGET', KEYS[1], id)
  if entry then
    redis.call('HSET', KEYS[1], id, string.rep('0', 19) .. string.sub(entry, 20))
  end
end
""")

# Counts a note in the hash of a table's versions. KEYS[1]: the hash. ARGV: the field of the count. Returns the count;
# 0 for a table that does not exist, which is not created.
COUNT: Final = Script("""
if redis.call('HEXISTS', KEYS[1], '\\0') == 0 then return 0 end
return redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
""")

# Replaces a note. KEYS[1]: the generation's hash. ARGV: the note's field, the note that it has (empty: none) and the
# new one. Returns 0 if it has another one, or holds no generation.
NOTE_TEXT: Final = Script("""
local held = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if redis.call('HEXISTS', KEYS[1], 'generation') == 0 or (held ~= ARGV[2] and held ~= ARGV[3]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
""")
