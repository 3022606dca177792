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


# KEYS: rows. ARGV: tombstone TTL in ms, then version and document for each key; an empty document deletes.
# Returns 1 for each key that was written, 0 where the version held is the same or newer.
APPLY: Final = Script("""
local written = {}
for i, key in ipairs(KEYS) do
  local version, document = ARGV[2 * i], ARGV[2 * i + 1]
  local held = redis.call('HGET', key, 'v')
  if held and held >= version then
    written[i] = 0
  else
    if document == '' then
      redis.call('DEL', key)
      redis.call('HSET', key, 'v', version, 'd', '1')
      redis.call('PEXPIRE', key, ARGV[1])
    else
      redis.call('HSET', key, 'v', version, 'doc', document)
      if held then
        redis.call('HDEL', key, 'd')
        redis.call('PERSIST', key)
      end
    end
    written[i] = 1
  end
end
return written
""")

# KEYS: rows. ARGV: tombstone TTL in ms, floor. Returns how many live rows were older than the floor and are deleted.
SWEEP: Final = Script("""
local swept = 0
for _, key in ipairs(KEYS) do
  local held = redis.call('HMGET', key, 'v', 'd')
  if held[1] and not held[2] and held[1] < ARGV[2] then
    redis.call('DEL', key)
    redis.call('HSET', key, 'v', ARGV[2], 'd', '1')
    redis.call('PEXPIRE', key, ARGV[1])
    swept = swept + 1
  end
end
return swept
""")
