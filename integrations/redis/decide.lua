-- Has this client anything left of every rate that applies? All are charged, or none.
--
-- KEYS     one key for each setting that a request names, in order
-- ARGV[1]  msgpack, flat: { settings, request, request, ... }
--   settings { { kind, flag, a, c, unit, k }, ... }: requests name them by number
--     kind     1 bucket, 2 fixed window, 3 sliding window counter, 4 sliding window log
--     flag     0 enforce, 1 only look, 2 observe (charge if there is enough, never refuse)
--     a        bucket: units that come back in a microsecond; windows: microseconds
--     c        units of a full bucket, or of a window's limit
--     unit     units of one cost unit
--     k        the cost in units
--   request  op, not_after, then
--     op 1     charge:     id, n, and n settings
--     op 2     give back:  id, n, n settings, and when it was charged, microseconds
--     op 3     take whatever is left:  id, n, and n settings
--     op 4     lease:      the process, and an item of its own (below)
--     op 5     charge one: its setting
--   not_after  microseconds of this server's clock; executed later it does nothing
--   id         unique to the request; names its entries in a log
--
-- Returns msgpack, flat: { now, answer, answer, ... }
--   answer   status, and if a charge was decided (0 or 1), for each setting
--            allowed, remaining, reset_after, retry_after
--     status       0 refused, 1 done, 2 came too late: nothing done, 3 the key holds something
--                  else than ours
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
local pack, unpack_text, byte = struct.pack, struct.unpack, string.byte

-- What each string key holds now, as it will be written, and milliseconds until it is as good
-- as new. A key is read from the server once.
local texts, expiry = {}, {}

-- What strings begin with: whatever else lies under a key of ours is not taken for numbers.
local OURS = 177
-- Numbers are kept as bytes: as text they take four times as long to write and read.
local THREE, FOUR = '<Bddd', '<Bdddd'
local LENGTH_OF_THREE, LENGTH_OF_FOUR = 25, 33
-- No number here reaches it.
local TOO_LARGE = 2 ^ 53

local function whole(number)
  return format('%.0f', number)
end

-- All strings at once: each call of a command costs as much as the arithmetic of a rate.
local function read_all()
  local LARGEST = 500   -- arguments of one call
  for first = 1, #KEYS, LARGEST do
    local last = min(first + LARGEST - 1, #KEYS)
    local found = call('MGET', unpack(KEYS, first, last))
    for number = first, last do
      -- Not there, or of another type, which only a look at the key itself tells.
      texts[KEYS[number]] = found[number - first + 1] or nil
    end
  end
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

-- Three numbers that were written here; nothing for any other text. What is not a number
-- compares with nothing.
local function three(text)
  if #text ~= LENGTH_OF_THREE or byte(text) ~= OURS then return nil end
  local _, used, unit, at = unpack_text(THREE, text)
  if used >= 0 and used < TOO_LARGE and unit >= 1 and at >= 0 and at < TOO_LARGE then
    return used, unit, at
  end
end

-- Four of them.
local function four(text)
  if #text ~= LENGTH_OF_FOUR or byte(text) ~= OURS then return nil end
  local _, used, unit, at, before = unpack_text(FOUR, text)
  if used >= 0 and used < TOO_LARGE and unit >= 1 and at >= 0 and at < TOO_LARGE
    and before >= 0 and before < TOO_LARGE then
    return used, unit, at, before
  end
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
-- key that holds something else. With them judge returns allowed, remaining, reset_after, retry_after, and
-- charge, refund and take write.
local bucket, fixed, counter, log = {}, {}, {}, {}

-- A bucket: used, unit, at. Returns the units used.
function bucket.look(key, item)
  local text = read(key)
  if text == nil then return nil end
  if text == '' then return 0 end
  local used, unit, at = three(text)
  if not used then return nil end
  local a, c = item[3], item[4]
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
  write(key, pack(THREE, OURS, used, item[5], now), used / item[3])
end

function bucket.charge(key, item, id, used)
  bucket.store(key, item, used + item[6])
end

function bucket.refund(key, item, id, used, _, _, _, at)
  -- After one burst's time the bucket has it anyway; more would admit above the burst.
  if now - at < item[4] / item[3] and used > 0 then
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

-- A fixed window: used, unit, start. Returns the units used and the start of this window.
function fixed.look(key, item)
  local text = read(key)
  if text == nil then return nil end
  local start = window_of(now, item[3])
  if text == '' then return 0, start end
  local used, unit, stored = three(text)
  if not used then return nil end
  if stored < start then return 0, start end
  local c = item[4]
  used = converted(used, unit, item[5], c)
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
  write(key, pack(THREE, OURS, used, item[5], start), start + item[3] - now)
end

function fixed.charge(key, item, id, used, start)
  fixed.store(key, item, used + item[6], start)
end

function fixed.refund(key, item, id, used, start, _, _, at)
  if window_of(at, item[3]) == start and used <= item[4] then
    fixed.store(key, item, max(0, used - item[6]), start)
  end
end

function fixed.take(key, item, id, used, start)
  if used <= item[4] then fixed.store(key, item, min(used + item[6], item[4]), start) end
end

-- A sliding window counter: used, unit, start, before. Returns the units used in this window, its
-- start, those used in the one before, and whether the clock stepped back by a window.
function counter.look(key, item)
  local text = read(key)
  if text == nil then return nil end
  local per, c = item[3], item[4]
  local start = window_of(now, per)
  if text == '' then return 0, start, 0, false end
  local used, unit, stored, before = four(text)
  if not used then return nil end
  used = converted(used, unit, item[5], c)
  local distance = stored - start
  if distance >= 2 * per then
    return c, start, 0, false   -- the clock stepped far back: this window is spent
  elseif distance >= per then
    return c, start, 0, true    -- by one window: waited out
  elseif distance >= 0 then
    return used, start, converted(before, unit, item[5], c), false
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
  write(key, pack(FOUR, OURS, used, item[5], start, before), start + 2 * item[3] - now)
end

function counter.charge(key, item, id, used, start, before)
  counter.store(key, item, used + item[6], start, before)
end

function counter.refund(key, item, id, used, start, before, ahead, at)
  local charged = window_of(at, item[3])
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
  if newest and not (newest >= 0 and newest < TOO_LARGE) then return nil end
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
local CHARGE, GIVE_BACK, LEASE, ONE = 1, 2, 4, 5
local REFUSED, DONE, STALE, WRONG_TYPE = 0, 1, 2, 3
local LOOK, OBSERVE = 1, 2

local request = cmsgpack.unpack(ARGV[1])
local settings = request[1]
local answers, said = { now }, 1

-- One rate: looked at, judged and charged in one go.
local function one(key, item, id)
  local kind = KINDS[item[1]]
  local u, v, w, x = kind.look(key, item)
  if not u then
    said = said + 1
    answers[said] = WRONG_TYPE
    return
  end
  local allowed, remaining, reset, retry = kind.judge(item, u, v, w, x)
  local flag = item[2]
  if allowed and flag ~= LOOK then kind.charge(key, item, id, u, v, w, x) end
  answers[said + 1] = (allowed or flag == OBSERVE) and DONE or REFUSED
  answers[said + 2] = allowed and 1 or 0
  answers[said + 3], answers[said + 4], answers[said + 5] = remaining, reset, retry
  said = said + 5
end

-- Several: all are looked at before any is charged. Their settings begin at `from`, their keys
-- at `first`.
local function several(op, id, from, count, first, at)
  local found = {}
  for number = 0, count - 1 do
    local item = settings[request[from + number]]
    local u, v, w, x = KINDS[item[1]].look(KEYS[first + number], item)
    if not u then
      said = said + 1
      answers[said] = WRONG_TYPE
      return
    end
    found[number] = { u, v, w, x, true }
  end
  local place, status = said + 1, DONE
  said = place
  if op == CHARGE then
    for number = 0, count - 1 do
      local item, state = settings[request[from + number]], found[number]
      local allowed, remaining, reset, retry =
        KINDS[item[1]].judge(item, state[1], state[2], state[3], state[4])
      if not allowed and item[2] ~= OBSERVE then status = REFUSED end
      state[5] = allowed and item[2] ~= LOOK
      answers[said + 1], answers[said + 2] = allowed and 1 or 0, remaining
      answers[said + 3], answers[said + 4] = reset, retry
      said = said + 4
    end
  end
  answers[place] = status
  if status == REFUSED then return end
  for number = 0, count - 1 do
    local item, state = settings[request[from + number]], found[number]
    if state[5] then
      KINDS[item[1]][ACTS[op]](
        KEYS[first + number], item, id, state[1], state[2], state[3], state[4], at)
    end
  end
end

-- A share of a bucket, leased to one process:
--   item     { 0, 0, a, c, unit, least, held, seen, want, back, debt, term }
--     least    units without which nothing helps; want: as many as it would like
--     held     units of earlier leases that it still has; what is missing was spent
--     seen     the number of the last answer that reached it
--     back     units it returns, no longer held
--     debt     units it let through without having them, since that answer
--     term     microseconds until what it holds is void
-- Answer: 1, granted, number, left in the bucket, microseconds until `least` is there, processes
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
      if not stored then return { WRONG_TYPE } end
      used, at = tonumber(stored), min(now, tonumber(moment))
      if tonumber(from) ~= unit then used = ceil(used * unit / tonumber(from)) end
    else
      local h, n, g, d, u, w = match(text, SIX)
      if not h then return { WRONG_TYPE } end
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

read_all()
local at, first = 2, 1
while request[at] do
  local op, late = request[at], now > request[at + 1]
  if op == ONE then
    if not late then one(KEYS[first], settings[request[at + 2]]) end
    at, first = at + 3, first + 1
  elseif op == LEASE then
    if not late then
      for _, number in ipairs(lease(request[at + 3], request[at + 2], KEYS[first])) do
        said = said + 1
        answers[said] = number
      end
    end
    at, first = at + 4, first + 1
  else
    local id, count, from = request[at + 2], request[at + 3], at + 4
    at = from + count
    local charged
    if op == GIVE_BACK then charged, at = request[at], at + 1 end
    if not late then
      if count == 1 and op == CHARGE then
        one(KEYS[first], settings[request[from]], id)
      else
        several(op, id, from, count, first, charged)
      end
    end
    first = first + count
  end
  if late then
    said = said + 1
    answers[said] = STALE
  end
end

-- A number as an argument is spelled with all its digits, which takes long; most are the same.
local spelled = {}
for key, milliseconds in pairs(expiry) do
  local text = spelled[milliseconds]
  if not text then
    text = whole(milliseconds)
    spelled[milliseconds] = text
  end
  call('SET', key, texts[key], 'PX', text)
end

return cmsgpack.pack(answers)
