-- Has this client anything left of every rate that applies? All are charged, or none.
--
-- KEYS     one key for each item below, in order
-- ARGV[1]  msgpack: { request, ... }
--   request  { op, not_after, id, item, ... }
--     op         1 charge, 2 give back, 3 take whatever is left, 4 lease (below)
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
local call, try, match, format = redis.call, redis.pcall, string.match, string.format

-- What each string key holds now, as it will be written, and milliseconds until it is as good
-- as new. A key is read from the server once.
local texts, expiry = {}, {}

local function whole(number)
  return format('%.0f', number)
end

-- The text under `key`; '' if there is none, nil if it is of another type.
local function read(key)
  local text = texts[key]
  if text == nil then
    text = try('GET', key)
    if not text then
      text = ''
    elseif type(text) == 'table' then
      return nil
    end
    texts[key] = text
  end
  return text
end

local function write(key, text, until_new)
  texts[key] = text
  expiry[key] = ceil(until_new / 1000) + SLACK
end

-- Units of another setting of the same rate: what was used stays used, at most all of it.
local function converted(used, from, unit, c)
  if from ~= unit then used = ceil(used * unit / from) end
  return min(used, c)
end

-- Each algorithm: look(key, item) returns what is there, up to four values, the first nil for a
-- key of another type. With them judge returns allowed, remaining, reset_after, retry_after, and
-- charge, refund and take write.
local bucket, fixed, counter, log = {}, {}, {}, {}

-- A bucket: "used unit at". Returns the units used.
function bucket.look(key, item)
  local text = read(key)
  if text == nil then return nil end
  local used, unit, at = match(text, '^(%d+) (%d+) (%d+)')
  if not used then return 0 end
  local a, c = item[3], item[4]
  used, unit, at = tonumber(used), tonumber(unit), tonumber(at)
  if unit ~= item[5] or used > c then used = converted(used, unit, item[5], c) end
  local passed = now - at
  if passed >= 0 then
    -- Divided, not multiplied: the product may be too large to be exact.
    if passed >= used / a then return 0 end
    return used - passed * a
  elseif -passed > (2 * c - used) / a then
    return c   -- the clock stepped far back: start empty rather than wait for it
  end
  return used - passed * a
end

function bucket.judge(item, used)
  local a, c, k = item[3], item[4], item[6]
  local after = used + k
  if after <= c then return true, c - after, ceil(after / a), 0 end
  return false, max(0, c - used), ceil(used / a), k > c and -1 or ceil((after - c) / a)
end

function bucket.store(key, item, used)
  write(key, format('%.0f %.0f %.0f', used, item[5], now), used / item[3])
end

function bucket.charge(key, item, id, used)
  bucket.store(key, item, used + item[6])
end

function bucket.refund(key, item, id, used)
  -- After one burst's time the bucket has it anyway; more would admit above the burst.
  if now - item[7] < item[4] / item[3] and used > 0 then
    bucket.store(key, item, max(0, used - item[6]))
  end
end

function bucket.take(key, item, id, used)
  bucket.store(key, item, max(used, min(used + item[6], item[4])))
end

-- Windows begin at multiples of their length since 1970.
local function window_of(moment, per)
  return moment - fmod(moment, per)
end

-- A fixed window: "used unit start". Returns the units used and the start of this window.
function fixed.look(key, item)
  local text = read(key)
  if text == nil then return nil end
  local start = window_of(now, item[3])
  local used, unit, stored = match(text, '^(%d+) (%d+) (%d+)')
  stored = tonumber(stored)
  if not stored or stored < start then return 0, start end
  local c = item[4]
  used = converted(tonumber(used), tonumber(unit), item[5], c)
  -- The clock stepped back: by one window it is waited out, by more this one is spent.
  local ahead = floor((stored - start) / item[3])
  return ahead < 2 and used + ahead * c or c, start
end

function fixed.judge(item, used, start)
  local per, c, k = item[3], item[4], item[6]
  local after = used + k
  if after <= c then return true, c - after, start + per - now, 0 end
  local reset = used > 0 and start + max(1, ceil(used / c)) * per - now or 0
  local retry = k > c and -1 or start + max(1, ceil((after - c) / c)) * per - now
  return false, max(0, c - used), reset, retry
end

function fixed.store(key, item, used, start)
  write(key, format('%.0f %.0f %.0f', used, item[5], start), start + item[3] - now)
end

function fixed.charge(key, item, id, used, start)
  fixed.store(key, item, used + item[6], start)
end

function fixed.refund(key, item, id, used, start)
  if window_of(item[7], item[3]) == start and used <= item[4] then
    fixed.store(key, item, max(0, used - item[6]), start)
  end
end

function fixed.take(key, item, id, used, start)
  if used <= item[4] then fixed.store(key, item, min(used + item[6], item[4]), start) end
end

-- A sliding window counter: "used unit start before". Returns the units used in this window, its
-- start, those used in the one before, and whether the clock stepped back by a window.
function counter.look(key, item)
  local text = read(key)
  if text == nil then return nil end
  local per, c = item[3], item[4]
  local start = window_of(now, per)
  local used, unit, stored, before = match(text, '^(%d+) (%d+) (%d+) (%d+)')
  if not before then return 0, start, 0, false end
  unit = tonumber(unit)
  used = converted(tonumber(used), unit, item[5], c)
  local distance = tonumber(stored) - start
  if distance >= 2 * per then
    return c, start, 0, false   -- the clock stepped far back: this window is spent
  elseif distance >= per then
    return c, start, 0, true    -- by one window: waited out
  elseif distance >= 0 then
    return used, start, converted(tonumber(before), unit, item[5], c), false
  elseif distance >= -per then
    return 0, start, used, false
  end
  return 0, start, 0, false
end

-- Whole cost units of `before` that are still in sight `into` microseconds into the window.
local function fading(before, into, per, unit)
  local product, divisor = before * (per - into), per * unit
  return (product - fmod(product, divisor)) / divisor * unit
end

function counter.judge(item, count, start, before, ahead)
  local per, c, unit, k = item[3], item[4], item[5], item[6]
  local used = fading(before, now - start, per, unit) + count
  if used + k <= c then return true, c - used - k, start + 2 * per - now, 0 end
  local reset = 0
  if count > 0 then reset = start + 2 * per - now elseif before > 0 then reset = start + per - now end
  if ahead then reset = reset + per end
  if k > c then return false, max(0, c - used), reset, -1 end
  local room = c - count - k
  if ahead then start = start + per end
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

function counter.store(key, item, used, start, before)
  write(key, format('%.0f %.0f %.0f %.0f', used, item[5], start, before), start + 2 * item[3] - now)
end

function counter.charge(key, item, id, used, start, before)
  counter.store(key, item, used + item[6], start, before)
end

function counter.refund(key, item, id, used, start, before, ahead)
  local charged = window_of(item[7], item[3])
  if ahead then return end
  if charged == start then
    counter.store(key, item, max(0, used - item[6]), start, before)
  elseif charged == start - item[3] then
    counter.store(key, item, used, start, max(0, before - item[6]))
  end
end

function counter.take(key, item, id, used, start, before, ahead)
  if not ahead then
    counter.store(key, item, max(used, min(used + item[6], item[4])), start, before)
  end
end

-- A log: a sorted set of entries by the time they were written. Returns their number, the newest
-- and the key.
function log.look(key, item)
  local per = item[3]
  local dropped = try('ZREMRANGEBYSCORE', key, '-inf', whole(now - per))
  if type(dropped) == 'table' then return nil end
  local newest = tonumber(call('ZRANGE', key, -1, -1, 'WITHSCORES')[2])
  if newest and newest - now > per then
    -- The clock stepped far back: what was written later than now counts as written now.
    for _, member in ipairs(call('ZRANGEBYSCORE', key, '(' .. whole(now), '+inf')) do
      call('ZADD', key, whole(now), member)
    end
    newest = now
  end
  return call('ZCARD', key), newest, key
end

function log.judge(item, used, newest, key)
  local per, c, k = item[3], item[4], item[6]
  if used + k <= c then
    return true, c - used - k, max(now, newest or now) + per - now, 0
  end
  local retry = -1
  if k <= c then
    local rank = used + k - c - 1   -- of the entry that must leave first
    retry = tonumber(call('ZRANGE', key, rank, rank, 'WITHSCORES')[2]) + per - now
  end
  return false, max(0, c - used), used > 0 and newest + per - now or 0, retry
end

function log.append(key, item, id, newest, units)
  -- Should the clock have stepped back a little, the order stays.
  local moment = max(now, newest or now)
  for number = 1, units do call('ZADD', key, whole(moment), id .. ':' .. number) end
  call('PEXPIRE', key, ceil((moment + item[3] - now) / 1000) + SLACK)
end

function log.charge(key, item, id, used, newest)
  log.append(key, item, id, newest, item[6])
end

function log.refund(key, item, id)
  for number = 1, item[6] do call('ZREM', key, id .. ':' .. number) end
end

function log.take(key, item, id, used, newest)
  local units = min(item[6], item[4] - used)
  if units > 0 then log.append(key, item, id, newest, units) end
end

local KINDS = { bucket, fixed, counter, log }
local ACTS = { 'charge', 'refund', 'take' }
local CHARGE, LEASE = 1, 4
local REFUSED, DONE, STALE, WRONG_TYPE = 0, 1, 2, 3
local LOOK, OBSERVE = 1, 2

-- One rate: looked at, judged and charged in one go.
local function one(item, id, key)
  local kind = KINDS[item[1]]
  local u, v, w, x = kind.look(key, item)
  if not u then return { WRONG_TYPE } end
  local allowed, remaining, reset, retry = kind.judge(item, u, v, w, x)
  local flag = item[2]
  if allowed then
    if flag ~= LOOK then kind.charge(key, item, id, u, v, w, x) end
    return { DONE, 1, remaining, reset, retry }
  end
  return { flag == OBSERVE and DONE or REFUSED, 0, remaining, reset, retry }
end

-- Several: all are looked at before any is charged.
local function several(request, first)
  local op, id = request[1], request[3]
  local found = {}
  for number = 4, #request do
    local item = request[number]
    local u, v, w, x = KINDS[item[1]].look(KEYS[first + number - 4], item)
    if not u then return { WRONG_TYPE } end
    found[number] = { u, v, w, x }
  end
  local answer = { DONE }
  if op == CHARGE then
    for number = 4, #request do
      local item, state = request[number], found[number]
      local allowed, remaining, reset, retry =
        KINDS[item[1]].judge(item, state[1], state[2], state[3], state[4])
      if not allowed and item[2] ~= OBSERVE then answer[1] = REFUSED end
      local at = #answer
      answer[at + 1], answer[at + 2] = allowed and 1 or 0, remaining
      answer[at + 3], answer[at + 4] = reset, retry
    end
    if answer[1] == REFUSED then return answer end
  end
  for number = 4, #request do
    local item, state = request[number], found[number]
    if op ~= CHARGE or (item[2] ~= LOOK and answer[2 + 4 * (number - 4)] == 1) then
      KINDS[item[1]][ACTS[op]](
        KEYS[first + number - 4], item, id, state[1], state[2], state[3], state[4])
    end
  end
  return answer
end

-- A share of a bucket, leased to one process: { op, not_after, process, item } with
--   item     { 0, 0, a, c, unit, least, held, seen, want, back, debt, term }
--     least    units without which nothing helps; want: as many as it would like
--     held     units of earlier leases that it still has; what is missing was spent
--     seen     the number of the last answer that reached it
--     back     units it returns, no longer held
--     debt     units it let through without having them, since that answer
--     term     microseconds until what it holds is void
-- Answer: { 1, granted, number, left in the bucket, microseconds until `least` is there, processes }
--
-- A hash: "s" is "used unit at", every process "held number granted debt until want". What is
-- leased counts as used, and the bucket never refills above what is not leased.
local SIX = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$'

local function lease(item, process, key)
  local a, c, unit, least, held = item[3], item[4], item[5], item[6], item[7]
  local seen, want, back, debt, term = item[8], item[9], item[10], item[11], item[12]
  local fields = try('HGETALL', key)
  if fields.err then return { WRONG_TYPE } end
  local used, at, leased, others, wants, processes = 0, now, 0, 0, want, 1
  local mine
  for number = 1, #fields, 2 do
    local name, text = fields[number], fields[number + 1]
    if name == 's' then
      local stored, from, moment = match(text, '^(%d+) (%d+) (%d+)$')
      used, at = tonumber(stored), min(now, tonumber(moment))
      if tonumber(from) ~= unit then used = ceil(used * unit / tonumber(from)) end
    else
      local h, n, g, d, u, w = match(text, SIX)
      h, u = tonumber(h), tonumber(u)
      leased = leased + h
      if u <= now then
        call('HDEL', key, name)   -- whoever held it has stopped: it is lost
      elseif name == process then
        mine = { held = h, number = tonumber(n), granted = tonumber(g), debt = tonumber(d) }
      else
        others, wants, processes = others + h, wants + tonumber(w), processes + 1
      end
    end
  end
  -- It refilled down to what was leased all that time, including what is void by now.
  local passed = now - at
  if passed >= used / a then used = leased else used = max(leased, used - passed * a) end
  local number = 0
  if mine then
    number = mine.number
    if number ~= seen then
      -- The last answer was lost: what it granted never arrived, the debt it heard of is known.
      used, debt = used - mine.granted, max(0, debt - mine.debt)
    end
    used = used - min(back, mine.held)
  else
    used = used + held   -- the store has forgotten: count it again
  end
  used = max(others + held, used) + debt
  local left = max(0, c - used)
  local granted = min(want, floor(left / max(wants, 1) * want), left)
  if granted < least then granted = left >= least and least or 0 end
  used = used + granted
  local retry = granted < least and max(1, ceil((used + least - c) / a)) or 0
  call('HSET', key, 's', format('%.0f %.0f %.0f', used, unit, now), process,
    format('%.0f %.0f %.0f %.0f %.0f %.0f', held + granted, number + 1, granted, item[11],
      now + term, want))
  call('PEXPIRE', key, ceil(max(used / a, term) / 1000) + SLACK)
  return { DONE, granted, number + 1, max(0, c - used), retry, processes }
end

local requests = cmsgpack.unpack(ARGV[1])
local answers = { now }
local first = 1
for number = 1, #requests do
  local request = requests[number]
  local items = #request - 3
  local answer
  if now > request[2] then
    answer = { STALE }
  elseif request[1] == LEASE then
    answer = lease(request[4], request[3], KEYS[first])
  elseif items == 1 and request[1] == CHARGE then
    answer = one(request[4], request[3], KEYS[first])
  else
    answer = several(request, first)
  end
  answers[number + 1] = answer
  first = first + items
end

for key, milliseconds in pairs(expiry) do
  call('SET', key, texts[key], 'PX', milliseconds)
end

return cmsgpack.pack(answers)
