"""One limit for many processes: shared rates in Redis or Valkey, alone, clustered or replicated."""

from loadgate.integrations.redis.store import RedisStore

__all__ = ["RedisStore"]
