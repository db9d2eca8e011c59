-- The arithmetic of gateway/quota/windows.py, on windows { used, reserved, at, starts } and
-- shapes { limit, period_us, is_enforced }. Tests compare the two: their results, and the names of their functions.

-- floor(us * limit / period) and the remainder, though us * limit may be beyond 2^53: a long division, with digits of
-- `limit` so small that no step is.
local function scaled(us, limit, period)
  local product = us * limit
  if product < EXACT then
    local units = floor(product / period)
    return units, product - units * period
  end
  local digit = 1
  while digit * period * 4 <= EXACT do
    digit = digit * 2
  end
  if digit == 1 then
    return floor(us / period * limit), 0 -- a period of over 71 years
  end
  local whole = floor(us / period)
  local part = us - whole * period
  local power, left, units, rest = 1, limit, 0, 0
  while power * digit <= limit do
    power = power * digit
  end
  while power >= 1 do
    local d = floor(left / power)
    left = left - d * power
    local step = rest * digit + part * d
    local some = floor(step / period)
    rest = step - some * period
    units = units * digit + some
    power = power / digit
  end
  return whole * limit + units, rest -- beyond 2^53 only where it is more than any level
end

-- Leaks a rate until `now`. `at` is a number in rates only.
local function leak(shape, window)
  local limit, period, used, age = shape[1], shape[2], window.used, now - window.at
  if age <= 0 then
    return
  end
  if used == 0 or (age >= period and used <= limit) then
    window.used, window.at = 0, now
    return
  end
  local units, rest = scaled(age, limit, period)
  if units >= used then
    window.used, window.at = 0, now
  else
    window.used, window.at = used - units, now - floor(rest / limit)
  end
end

-- Units that a rate has leaked in this time.
local function leaked_since(shape, age)
  local units = scaled(max(0, age), shape[1], shape[2])
  return units
end

local function draw(window, amount)
  if window.starts ~= '' then
    window.reserved = window.reserved + amount
  else
    window.used = window.used + amount
  end
end

-- The part of the unused rest of a draw of this age that goes back.
local function given_back(shape, rest, age)
  local span = max(shape[2], 240000000) -- GIVE_BACK_US
  local lost, part = scaled(min(max(0, age), span), rest, span)
  if part > 0 then
    lost = lost + 1
  end
  return rest - min(rest, lost, leaked_since(shape, age))
end

-- A rate that was charged one amount is charged another instead.
local function recharge(shape, window, charged, actual, age)
  if actual >= charged then
    window.used = window.used + actual - charged
    return
  end
  window.used = max(0, window.used - given_back(shape, charged - actual, age))
  if window.used == 0 then
    window.at = max(window.at, now) -- nothing is left to leak, and a part of a unit is no credit
  end
end

local function settle(shape, window, amount, actual, age)
  if window.starts ~= '' then
    window.used, window.reserved = window.used + actual, max(0, window.reserved - amount)
  elseif shape[2] == 0 then
    window.used = max(0, window.used - amount)
  else
    recharge(shape, window, amount, actual, age)
  end
end

local function charge(shape, window, actual, age)
  if window.starts ~= '' then
    window.used = window.used + actual
  elseif shape[2] > 0 then
    window.used = window.used + max(0, actual - leaked_since(shape, age))
  end
end

local function correct(shape, window, charged, actual, age)
  if window.starts ~= '' then
    window.used = max(0, window.used + actual - charged)
  elseif shape[2] > 0 then
    recharge(shape, window, charged, actual, age)
  end
end

-- A draw that was closed as lost and charged is open again.
local function reopen(shape, window, amount, charged, age)
  if window.starts ~= '' then
    window.used, window.reserved = max(0, window.used - charged), window.reserved + amount
  elseif shape[2] == 0 then
    window.used = window.used + amount
  else
    recharge(shape, window, charged, amount, age)
  end
end

-- Days since 1970 of the day after this one, computed in years that begin with March.
local function days_until_after(year, month, day)
  if month <= 2 then
    year, month = year - 1, month + 12
  end
  local days = 365 * year + floor(year / 4) - floor(year / 100) + floor(year / 400) + floor((153 * month - 457) / 5)
  return days + day - 719468
end

local HOURS_KEPT_S = 14 * 86400 -- HOURS_KEPT_DAYS of gateway/store/__init__.py

-- The Unix time in seconds at which a day (2026-11-20), ISO week (2026-W47) or month (2026-11) is forgotten: `SUMS_S`
-- after its end; an hour (2026-11-20T14) earlier, `HOURS_KEPT_S` after its day.
local function forgotten_at(starts)
  local day_of_hour = match(starts, '^(.*)T')
  if day_of_hour then
    local y, m, d = match(day_of_hour, '^(%d+)-(%d+)-(%d+)$')
    return days_until_after(y + 0, m + 0, d + 0) * 86400 + min(SUMS_S, HOURS_KEPT_S)
  end
  local year, week = match(starts, '^(%d+)-W(%d+)$')
  if week then
    -- The first week has 4 January in it. 1970 began on a Thursday, so this is the number of days before its Monday + 7.
    local fourth = days_until_after(year + 0, 1, 3)
    return (fourth - (fourth + 3) % 7 + 7 * week) * 86400 + SUMS_S
  end
  local month, day
  year, month, day = match(starts, '^(%d+)-(%d+)-?(%d*)$')
  year, month, day = year + 0, month + 0, tonumber(day)
  if not day then
    month, day = month + 1, 0
    if month > 12 then
      year, month = year + 1, 1
    end
  end
  return days_until_after(year, month, day) * 86400 + SUMS_S
end
