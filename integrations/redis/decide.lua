-- Has this client anything left of every rate that applies? All are charged, or none.
--
-- KEYS     one key for each item below, in order
-- ARGV[1]  msgpack: { request, ... }
--   request  { op, not_after, id, item, ... }
--     op         1 charge, 2 give back, 3 take whatever is left
--     not_after  microseconds of this server's clock; executed later it does nothing
--     id         unique to the request; names its entries in a log
--   item     { kind, flag, a, c, unit, k, at }
--     kind       1 bucket, 2 fixed window, 3 sliding window counter, 4 sliding window log
--     flag       0 enforce, 1 only look, 2 observe (charge if there is enough, never refuse)
--     a          bucket: units that come back in a microsecond; windows: microseconds
--     c          units of a full bucket, or of a window's limit
--     unit       units of one cost unit
--     k          the cost in units
--     at         give back only: when it was charged, microseconds
--
-- Returns msgpack: { now, answer, ... }
--   answer   { status, allowed, remaining, reset_after, retry_after, allowed, ... }
--     status       0 refused, 1 done, 2 came too late: nothing done, 3 the key holds another type
--     remaining    units; the waits are microseconds, -1 for never
--
-- All numbers are integers below 2^53, so that Lua's doubles are exact. Strings are read once
-- and written last: an error on the way has changed nothing.

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- Correctness never depends on a key's expiry; it only removes what is as good as new.
local SLACK = 1000
local floor, ceil, max, min, fmod = math.floor, math.ceil, math.max, math.min, math.fmod

local states = {}   -- what each string key holds: three numbers, or false for a key of another type
local expiry = {}   -- of each changed key: microseconds until it is as good as new

local function whole(number)
  return string.format('%.0f', number)
end

-- A bucket is { used, unit, at }, a window { used, unit, start, used in the window before }.
local function read(key)
  local state = states[key]
  if state == nil then
    local text = redis.pcall('GET', key)
    if type(text) == 'table' then
      state = false
    else
      state = {}
      if text then
        for number in string.gmatch(text, '%d+') do
          state[#state + 1] = tonumber(number)
        end
      end
    end
    states[key] = state
  end
  return state
end

local function write(key, state, until_new)
  states[key] = state
  expiry[key] = until_new
end

-- Units of another setting of the same rate: what was used stays used, at most all of it.
local function converted(used, from, unit, c)
  if from ~= unit then
    used = ceil(used * unit / from)
  end
  return min(used, c)
end

-- Each algorithm: look(key, item) returns what is there (nil for another type), then
-- judge(item, state) returns allowed, remaining, reset_after, retry_after, and
-- charge, refund and take write.
local bucket, fixed, counter, log = {}, {}, {}, {}

function bucket.look(key, item)
  local state = read(key)
  if not state then return nil end
  local a, c = item[3], item[4]
  if not state[3] then return { used = 0 } end
  local used, at = converted(state[1], state[2], item[5], c), state[3]
  if at <= now then
    -- Divided, not multiplied: the product may be too large to be exact.
    if now - at >= used / a then used = 0 else used = used - (now - at) * a end
  elseif at - now > (2 * c - used) / a then
    used = c   -- the clock stepped far back: start empty rather than wait for it
  else
    used = used + (at - now) * a
  end
  return { used = used }
end

function bucket.judge(item, state)
  local a, c, k = item[3], item[4], item[6]
  local used = state.used
  local allowed = used + k <= c
  local retry = 0
  if allowed then
    used = used + k
  elseif k > c then
    retry = -1
  else
    retry = ceil((used + k - c) / a)
  end
  return allowed, max(0, c - used), ceil(used / a), retry
end

function bucket.store(key, item, used)
  write(key, { used, item[5], now }, used / item[3])
end

function bucket.charge(key, item, state)
  bucket.store(key, item, state.used + item[6])
end

function bucket.refund(key, item, state)
  -- After one burst's time the bucket has it anyway; more would admit above the burst.
  if now - item[7] < item[4] / item[3] and state.used > 0 then
    bucket.store(key, item, max(0, state.used - item[6]))
  end
end

function bucket.take(key, item, state)
  bucket.store(key, item, max(state.used, min(state.used + item[6], item[4])))
end

-- Windows begin at multiples of their length since 1970.
local function window_of(moment, per)
  return moment - fmod(moment, per)
end

function fixed.look(key, item)
  local state = read(key)
  if not state then return nil end
  local per, c = item[3], item[4]
  local start = window_of(now, per)
  local used = 0
  if state[3] and state[3] >= start then
    used = converted(state[1], state[2], item[5], c)
    -- The clock stepped back: by one window it is waited out, by more this one is spent.
    local ahead = floor((state[3] - start) / per)
    used = ahead < 2 and used + ahead * c or c
  end
  return { used = used, start = start }
end

function fixed.judge(item, state)
  local per, c, k = item[3], item[4], item[6]
  local used = state.used
  local allowed = used + k <= c
  local retry = 0
  if not allowed then
    retry = k > c and -1 or state.start + max(1, ceil((used + k - c) / c)) * per - now
  else
    used = used + k
  end
  local reset = used > 0 and state.start + max(1, ceil(used / c)) * per - now or 0
  return allowed, max(0, c - used), reset, retry
end

function fixed.store(key, item, state, used)
  write(key, { used, item[5], state.start }, state.start + item[3] - now)
end

function fixed.charge(key, item, state)
  fixed.store(key, item, state, state.used + item[6])
end

function fixed.refund(key, item, state)
  if window_of(item[7], item[3]) == state.start and state.used <= item[4] then
    fixed.store(key, item, state, max(0, state.used - item[6]))
  end
end

function fixed.take(key, item, state)
  if state.used <= item[4] then
    fixed.store(key, item, state, min(state.used + item[6], item[4]))
  end
end

function counter.look(key, item)
  local state = read(key)
  if not state then return nil end
  local per, c, unit = item[3], item[4], item[5]
  local start = window_of(now, per)
  local found = { start = start, used = 0, before = 0, ahead = false }
  if state[4] then
    local used = converted(state[1], state[2], unit, c)
    local before = converted(state[4], state[2], unit, c)
    local distance = state[3] - start
    if distance >= 2 * per then
      found.used = c         -- the clock stepped far back: this window is spent
    elseif distance >= per then
      found.used, found.ahead = c, true   -- by one window: waited out
    elseif distance >= 0 then
      found.used, found.before = used, before
    elseif distance >= -per then
      found.before = used
    end
  end
  return found
end

-- Whole cost units of `before` that are still in sight `into` microseconds into the window.
local function fading(before, into, per, unit)
  local product, divisor = before * (per - into), per * unit
  return (product - fmod(product, divisor)) / divisor * unit
end

function counter.judge(item, state)
  local per, c, unit, k = item[3], item[4], item[5], item[6]
  local start, before, count = state.start, state.before, state.used
  local into = now - start
  local used = fading(before, into, per, unit) + count
  local allowed = used + k <= c
  if allowed then
    return true, max(0, c - used - k), start + 2 * per - now, 0
  end
  local reset = 0
  if count > 0 then reset = start + 2 * per - now elseif before > 0 then reset = start + per - now end
  if state.ahead then reset = reset + per end
  if k > c then return false, max(0, c - used), reset, -1 end
  local room = c - count - k
  if state.ahead then start = start + per end
  if room < 0 then
    -- Not in this window, whatever fades: its own count must begin to fade.
    start, before, room = start + per, count, c - k
  end
  local bound = (floor(room / unit) + 1) * unit   -- what is in sight must be below this
  local wait = 0
  if bound <= before then wait = floor(per - bound * per / before) + 1 end
  while wait > 0 and fading(before, wait - 1, per, unit) <= room do wait = wait - 1 end
  while fading(before, wait, per, unit) > room do wait = wait + 1 end
  return false, max(0, c - used), reset, max(1, start + wait - now)
end

function counter.store(key, item, state, used, before)
  write(key, { used, item[5], state.start, before }, state.start + 2 * item[3] - now)
end

function counter.charge(key, item, state)
  counter.store(key, item, state, state.used + item[6], state.before)
end

function counter.refund(key, item, state)
  local charged = window_of(item[7], item[3])
  if state.ahead then return end
  if charged == state.start then
    counter.store(key, item, state, max(0, state.used - item[6]), state.before)
  elseif charged == state.start - item[3] then
    counter.store(key, item, state, state.used, max(0, state.before - item[6]))
  end
end

function counter.take(key, item, state)
  if not state.ahead then
    counter.store(key, item, state, max(state.used, min(state.used + item[6], item[4])), state.before)
  end
end

function log.newest(key)
  local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
  return last[2] and tonumber(last[2])
end

function log.look(key, item)
  local per = item[3]
  local dropped = redis.pcall('ZREMRANGEBYSCORE', key, '-inf', whole(now - per))
  if type(dropped) == 'table' then return nil end
  local newest = log.newest(key)
  if newest and newest - now > per then
    -- The clock stepped far back: what was written later than now counts as written now.
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, '(' .. whole(now), '+inf')) do
      redis.call('ZADD', key, whole(now), member)
    end
    newest = now
  end
  return { used = redis.call('ZCARD', key), newest = newest, key = key }
end

function log.judge(item, state)
  local per, c, k = item[3], item[4], item[6]
  local used, newest = state.used, state.newest
  local allowed = used + k <= c
  local retry = 0
  if allowed then
    used, newest = used + k, max(now, newest or now)
  elseif k > c then
    retry = -1
  else
    local blocking = redis.call('ZRANGE', state.key, used + k - c - 1, used + k - c - 1, 'WITHSCORES')
    retry = tonumber(blocking[2]) + per - now
  end
  return allowed, max(0, c - used), used > 0 and newest + per - now or 0, retry
end

function log.append(key, item, state, id, units)
  -- Should the clock have stepped back a little, the order stays.
  local moment = max(now, state.newest or now)
  for number = 1, units do
    redis.call('ZADD', key, whole(moment), id .. ':' .. number)
  end
  redis.call('PEXPIRE', key, whole(ceil((moment + item[3] - now) / 1000) + SLACK))
end

function log.charge(key, item, state, id)
  log.append(key, item, state, id, item[6])
end

function log.refund(key, item, state, id)
  for number = 1, item[6] do
    redis.call('ZREM', key, id .. ':' .. number)
  end
end

function log.take(key, item, state, id)
  local units = min(item[6], item[4] - state.used)
  if units > 0 then log.append(key, item, state, id, units) end
end

local KINDS = { bucket, fixed, counter, log }
local CHARGE, REFUND = 1, 2
local REFUSED, DONE, STALE, WRONG_TYPE = 0, 1, 2, 3
local LOOK, OBSERVE = 1, 2

local function handle(request, first)
  local op, id = request[1], request[3]
  local found = {}
  for number = 4, #request do
    local key, item = KEYS[first + number - 4], request[number]
    local state = KINDS[item[1]].look(key, item)
    if not state then return { WRONG_TYPE } end
    found[number] = state
  end
  if op ~= CHARGE then
    local act = op == REFUND and 'refund' or 'take'
    for number = 4, #request do
      local item = request[number]
      KINDS[item[1]][act](KEYS[first + number - 4], item, found[number], id)
    end
    return { DONE }
  end
  local answer = { DONE }
  for number = 4, #request do
    local item = request[number]
    local allowed, remaining, reset, retry = KINDS[item[1]].judge(item, found[number])
    if not allowed and item[2] ~= OBSERVE then answer[1] = REFUSED end
    local at = #answer
    answer[at + 1], answer[at + 2] = allowed and 1 or 0, remaining
    answer[at + 3], answer[at + 4] = reset, retry
  end
  if answer[1] == DONE then
    for number = 4, #request do
      local item = request[number]
      if item[2] ~= LOOK and answer[2 + 4 * (number - 4)] == 1 then
        KINDS[item[1]].charge(KEYS[first + number - 4], item, found[number], id)
      end
    end
  end
  return answer
end

local answers = { now }
local first = 1
for _, request in ipairs(cmsgpack.unpack(ARGV[1])) do
  if now > request[2] then
    answers[#answers + 1] = { STALE }
  else
    answers[#answers + 1] = handle(request, first)
  end
  first = first + #request - 3
end

for key, until_new in pairs(expiry) do
  local state = states[key]
  local words = {}
  for number, value in ipairs(state) do words[number] = whole(value) end
  redis.call('SET', key, table.concat(words, ' '), 'PX', whole(ceil(until_new / 1000) + SLACK))
end

return cmsgpack.pack(answers)
