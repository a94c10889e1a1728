-- The few lines every Lua worker shares: worker protocol, version 1 (docs/adding-a-framework.md).
--
-- The same as worker_api.py, for LuaJIT and, where torch.Timer is there, for plain Lua 5.1 to 5.3;
-- imports nothing of the host. A worker is
--
--     package.path = os.getenv("PYTHONPATH"):match("[^:]+") .. "/?.lua;" .. package.path
--     local worker_api = require "worker_api"
--     local torch = worker_api.import("torch")
--     local function prepare(trial)        -- build net and data; timed as set-up
--        return step, evaluate             -- step(n) trains n iterations and returns the last
--     end                                  -- loss, evaluate(split) the accuracy, a fraction 0-1
--     worker_api.serve(prepare, {versions = {torch = "7"}})

local M = {PROTOCOL = 1}

local LOOK_S = 0.1 -- the stop file is looked at this often
local PROGRESS_S = 0.5 -- a sign of life after this much silence
local EXPLODED = 20 -- a loss this many times that of blind guessing will not come back

-- Lua has no clock of its own that counts seconds in fractions and never goes back
local function make_clock()
   local found, ffi = pcall(require, "ffi")
   if found then
      ffi.cdef "typedef struct { long s, ns; } tuner_time; int clock_gettime(int, tuner_time *);"
      local now, MONOTONIC = ffi.new("tuner_time"), 1
      return function()
         ffi.C.clock_gettime(MONOTONIC, now)
         return tonumber(now.s) + tonumber(now.ns) / 1e9
      end
   end
   local timer = require("torch").Timer()
   return function() return timer:time().real end
end

M.clock = make_clock()
local started = M.clock()

local function is_finite(value)
   return value == value and math.abs(value) < math.huge
end

-- Raise these: a table with a kind is reported to the host, anything else is a bug.
function M.impossible(words, ...)
   error({kind = "impossible", message = words:format(...)}, 0)
end

local function diverged(words, ...)
   error({kind = "diverged", message = words:format(...)}, 0)
end

-- Require a module of the framework; ends with exit code 3 and the reason where it is missing.
function M.import(name)
   local found, module = pcall(require, name)
   if not found then
      local reason = tostring(module):match("[^\n]*")
      io.stderr:write(name, " cannot be imported: ", reason, "\n")
      os.exit(3)
   end
   return module
end

-- JSON ------------------------------------------------------------------------------------------

local ESCAPES = {b = "\b", f = "\f", n = "\n", r = "\r", t = "\t"}

local function utf8(code)
   if code < 0x80 then return string.char(code) end
   if code < 0x800 then return string.char(0xC0 + math.floor(code / 64), 0x80 + code % 64) end
   local middle = 0x80 + math.floor(code / 64) % 64
   if code < 0x10000 then
      return string.char(0xE0 + math.floor(code / 4096), middle, 0x80 + code % 64)
   end
   local second = 0x80 + math.floor(code / 4096) % 64
   return string.char(0xF0 + math.floor(code / 262144), second, middle, 0x80 + code % 64)
end

-- Text of a JSON string and the position behind its closing quote.
local function read_string(text, position)
   local pieces = {}
   while true do
      local plain, mark, after = text:match('^([^"\\]*)(["\\])()', position)
      if not plain then error("JSON string without end", 0) end
      pieces[#pieces + 1] = plain
      if mark == '"' then return table.concat(pieces), after end
      local letter = text:sub(after, after)
      position = after + 1
      if letter == "u" then
         local code = tonumber(text:sub(position, position + 3), 16)
         position = position + 4
         local low = text:match("^\\u([dD][c-fC-F]%x%x)", position)
         if code >= 0xD800 and code < 0xDC00 and low then
            code = 0x10000 + (code - 0xD800) * 1024 + tonumber(low, 16) - 0xDC00
            position = position + 6
         end
         letter = utf8(code)
      end
      pieces[#pieces + 1] = ESCAPES[letter] or letter
   end
end

local WORDS = {["true"] = true, ["false"] = false}

-- One flat JSON object as a table; null entries are missing in it.
function M.read_json(text)
   local object, position = {}, text:match("^%s*{%s*()")
   if not position then error("no JSON object", 0) end
   while text:sub(position, position) == '"' do
      local key, value
      key, position = read_string(text, position + 1)
      position = text:match("^%s*:%s*()", position) or error("no value for " .. key, 0)
      if text:sub(position, position) == '"' then
         value, position = read_string(text, position + 1)
      else
         local word, after = text:match("^([%w%.%+%-]+)()", position)
         value, position = tonumber(word), after or error("no value for " .. key, 0)
         if value == nil then
            value = WORDS[word]
            if value == nil and word ~= "null" then error("no JSON value: " .. word, 0) end
         end
      end
      object[key] = value
      position = text:match("^%s*,?%s*()", position)
   end
   if not text:match("^}%s*$", position) then error("no JSON object", 0) end
   return object
end

local function write_value(value)
   if type(value) == "boolean" then return tostring(value) end
   if type(value) == "number" then
      if not is_finite(value) then return "null" end
      local whole = value == math.floor(value) and math.abs(value) < 2 ^ 53
      return (whole and "%.0f" or "%.17g"):format(value)
   end
   local text = tostring(value):gsub('[%c"\\\127-\255]', function(letter)
      return ("\\u%04x"):format(letter:byte())
   end)
   return '"' .. text .. '"'
end

-- The table as one flat ASCII object, its keys in order.
function M.write_json(object)
   local entries = {}
   for key, value in pairs(object) do
      entries[#entries + 1] = write_value(key) .. ": " .. write_value(value)
   end
   table.sort(entries)
   return "{" .. table.concat(entries, ", ") .. "}"
end

-- Data ------------------------------------------------------------------------------------------

-- Shape, type code and offset of the first value of an idx file; the values themselves are left
-- to the framework, which can map them.
function M.read_idx(path)
   local source = assert(io.open(path, "rb"))
   local _, _, code, rank = source:read(4):byte(1, 4)
   local shape = {}
   for axis = 1, rank do
      local a, b, c, d = source:read(4):byte(1, 4)
      shape[axis] = ((a * 256 + b) * 256 + c) * 256 + d
   end
   source:close()
   return shape, code, 4 + 4 * rank
end

-- Trials ----------------------------------------------------------------------------------------

local Trial = {}
Trial.__index = Trial

-- The entries of trial.json by name, and the event file.
local function open_trial(folder)
   local source = assert(io.open(folder .. "/trial.json", "rb"))
   local trial = setmetatable(M.read_json(source:read("*a")), Trial)
   source:close()
   trial.folder = folder
   trial.events = assert(io.open(folder .. "/events.jsonl", "a"))
   trial.last_event = M.clock()
   return trial
end

-- Append one event, flushed. Entries of both tables go in.
function Trial:emit(event, fields, attested)
   local all = {event = event}
   for _, each in ipairs({fields or {}, attested or {}}) do
      for key, value in pairs(each) do all[key] = value end
   end
   local _, fault = self.events:write(M.write_json(all), "\n")
   local _, later = self.events:flush()
   if fault or later then error({kind = "disk_full", message = fault or later}, 0) end
   self.last_event = M.clock()
end

-- Whether the host has created the stop file.
function Trial:stop_requested()
   local file = io.open(self.folder .. "/stop")
   if file then file:close() end
   return file ~= nil
end

-- Let VmHWM start anew, so that a warm session's trials do not inherit each other's peak.
local function reset_peak_memory()
   local target = io.open("/proc/self/clear_refs", "w")
   if target then
      target:write("5")
      target:close()
   end
end

local function check_loss(trial, iteration, loss)
   if not is_finite(loss) then
      diverged("loss is %s after %d iterations", loss ~= loss and "nan" or "inf", iteration)
   elseif loss > EXPLODED * math.log(trial.classes) then
      diverged("loss exploded to %.1f after %d iterations", loss, iteration)
   end
end

-- Some back ends hide divergence: no NaN, the loss just stays at that of blind guessing.
local function check_learning(trial, iteration, loss, accuracy)
   local chance = 1 / trial.classes
   local guessed = accuracy < math.min(1.5 * chance, chance + 0.05) -- few classes: that is learning
   if guessed and loss > 0.98 * math.log(trial.classes) and iteration >= 200 then
      diverged(
         "still no better than guessing after %d iterations (loss %.3f, accuracy %.1f %%)",
         iteration, loss, 100 * accuracy
      )
   end
end

-- Iterations at which accuracy is looked at, as a set, and the next of them after each one. Without
-- any nothing is evaluated, the end included: only the time is asked for.
local function read_marks(trial)
   local marks = {}
   for mark in tostring(trial.eval_at):gmatch("%d+") do marks[tonumber(mark)] = true end
   local function next_after(iteration)
      local nearest = trial.iterations
      for mark in pairs(marks) do
         if mark > iteration and mark < nearest then nearest = mark end
      end
      return nearest
   end
   return marks, next_after
end

-- Train to the last iteration or until the stop file appears; returns the last checkpoint and the
-- seconds its evaluation took. Evaluation is not counted as training time.
local function train(trial, step, evaluate, max_chunk)
   local marks, next_after = read_marks(trial)
   local iteration, train_s, chunk, looked = 0, 0, 1, M.clock()
   local seen_s, eval_s = 0, 0 -- training at the last evaluation, and what that took
   while true do
      local count = math.min(chunk, next_after(iteration) - iteration)
      local start = M.clock()
      local loss = step(count)
      local now = M.clock()
      iteration, train_s = iteration + count, train_s + now - start
      local fitting = math.floor(count * LOOK_S / math.max(now - start, 1e-6))
      chunk = math.max(1, math.min(max_chunk, fitting))
      check_loss(trial, iteration, loss)
      local stopped = false
      if now - looked > LOOK_S then looked, stopped = now, trial:stop_requested() end
      local over = stopped or iteration >= trial.iterations
      if over and not next(marks) then
         return {iteration = iteration, train_time_s = train_s, val_accuracy = 0 / 0}, 0
      end
      -- on the way, evaluation may not cost more than the training it follows
      local due = marks[iteration] and (trial.every_mark or train_s - seen_s >= eval_s)
      if over or due then
         local accuracy = evaluate("validation")
         local checkpoint = {iteration = iteration, train_time_s = train_s, loss = loss}
         checkpoint.test_accuracy = trial.every_mark and evaluate("test") or nil
         checkpoint.val_accuracy = accuracy
         trial:emit("checkpoint", checkpoint)
         check_learning(trial, iteration, loss, accuracy)
         seen_s, eval_s = train_s, M.clock() - now
         if over then return checkpoint, eval_s end
      elseif M.clock() - trial.last_event > PROGRESS_S then
         trial:emit("progress", {iteration = iteration, train_time_s = train_s, loss = loss})
      end
   end
end

local function run(trial, prepare, options, began)
   if trial.protocol ~= M.PROTOCOL then
      M.impossible("protocol %s, this worker speaks %d", tostring(trial.protocol), M.PROTOCOL)
   end
   reset_peak_memory()
   local report = options.report or function() return {} end
   local step, evaluate = prepare(trial)
   trial:emit("ready", options.versions, report())
   trial:emit("train_begin", {setup_time_s = M.clock() - began})
   local last, eval_s = train(trial, step, evaluate, options.chunk or 10)
   local ended = {iteration = last.iteration, train_time_s = last.train_time_s}
   trial:emit("train_end", ended, report())
   -- every trial reports the time that the test split takes; only some may look at its answers
   local result = {iteration = last.iteration, val_accuracy = last.val_accuracy}
   result.test_accuracy = 0 / 0 -- which JSON writes as null
   result.test_time_s = eval_s * trial.test_count / trial.validation_count
   if trial.test then
      local start = M.clock()
      result.test_accuracy = evaluate("test")
      result.test_time_s = M.clock() - start
   end
   trial:emit("result", result)
end

local KINDS = {["not enough memory"] = "out_of_memory", ["No space left"] = "disk_full"}

-- Run one trial; turn what goes wrong into an error event. Returns the exit code, 0 to go on.
local function guarded(trial, prepare, options, began)
   local function traced(fault)
      if type(fault) == "table" then return fault end
      for words, kind in pairs(KINDS) do
         if tostring(fault):find(words, 1, true) then return {kind = kind, message = fault} end
      end
      return {traceback = debug.traceback(tostring(fault), 2)}
   end
   local fine, fault = xpcall(function() run(trial, prepare, options, began) end, traced)
   if fine then return 0 end
   if fault.traceback then
      io.stderr:write(fault.traceback, "\n")
      return 1
   end
   trial:emit("error", {kind = fault.kind, message = tostring(fault.message)})
   return fault.kind == "impossible" and 2 or 1 -- a framework that has seen a NaN is not used again
end

-- Train every trial whose folder arrives on stdin, until its end. Never returns.
--
-- Options, each optional: versions of the framework by name; report, a function that returns what
-- is really in effect by the name of the param, which the host holds against what was requested;
-- chunk, the most iterations between two looks at the loss.
function M.serve(prepare, options)
   options = options or {}
   options.versions = options.versions or {}
   options.versions.lua = rawget(_G, "jit") and jit.version or _VERSION
   local began = started
   for line in io.stdin:lines() do
      local trial = open_trial(line)
      -- waiting for a further trial is no part of its set-up
      local code = guarded(trial, prepare, options, began or M.clock())
      trial.events:close()
      if code ~= 0 then os.exit(code) end
      began = nil
   end
   os.exit(0)
end

return M
