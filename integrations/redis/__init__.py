"""One limit for many processes: shared rates in Redis or Valkey, alone, clustered or replicated."""

from loadgate.integrations.extras import missing

try:
    from loadgate.integrations.redis.store import RedisStore
except ModuleNotFoundError as error:
    raise missing(__name__, error) from None

__all__ = ["RedisStore"]
