"""What runs inside Redis, atomically: the guard by version has no other place to be."""

import hashlib
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Script:
    """Lua source and the name by which EVALSHA calls it."""

    source: str

    @property
    def sha(self) -> str:
        return hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


# KEYS: the set of a table's live rows, then rows of this table. ARGV: tombstone TTL in ms, then version and document
# for each row; an empty document deletes. Returns 1 for each row that was written, 0 where the version held is the same
# or newer. The set holds what follows its own name in the names of the rows' keys.
APPLY: Final = Script("""
local live, id_begin = KEYS[1], #KEYS[1] + 1
local written = {}
for i = 2, #KEYS do
  local key, version, document = KEYS[i], ARGV[2 * i - 2], ARGV[2 * i - 1]
  local held = redis.call('HGET', key, 'v')
  if held and held >= version then
    written[i - 1] = 0
  else
    if document == '' then
      redis.call('DEL', key)
      redis.call('HSET', key, 'v', version, 'd', '1')
      redis.call('PEXPIRE', key, ARGV[1])
      redis.call('SREM', live, string.sub(key, id_begin))
    else
      redis.call('HSET', key, 'v', version, 'doc', document)
      if not held then
        redis.call('SADD', live, string.sub(key, id_begin))
      elseif redis.call('HDEL', key, 'd') == 1 then
        redis.call('PERSIST', key)
        redis.call('SADD', live, string.sub(key, id_begin))
      end
    end
    written[i - 1] = 1
  end
end
return written
""")

# KEYS: the set of a table's live rows, then rows of this table. ARGV: tombstone TTL in ms, floor. Returns how many live
# rows were older than the floor and are deleted now. The set also loses rows whose keys somebody else has deleted.
SWEEP: Final = Script("""
local live, id_begin = KEYS[1], #KEYS[1] + 1
local swept = 0
for i = 2, #KEYS do
  local key = KEYS[i]
  local held = redis.call('HMGET', key, 'v', 'd')
  if held[1] and not held[2] and held[1] < ARGV[2] then
    redis.call('DEL', key)
    redis.call('HSET', key, 'v', ARGV[2], 'd', '1')
    redis.call('PEXPIRE', key, ARGV[1])
    redis.call('SREM', live, string.sub(key, id_begin))
    swept = swept + 1
  elseif not held[1] then
    redis.call('SREM', live, string.sub(key, id_begin))
  end
end
return swept
""")
