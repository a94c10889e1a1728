-- Caffe's LeNet as numbers, the same as worker_lenet.py: the network that model=lenet means in
-- every framework. The first weights are those that NumPy draws there, number for number.

local found, bit = pcall(require, "bit")
if not found then bit = require "bit32" end -- LuaJIT has the one, Lua 5.2 the other

local M = {SCALE = 1 / 256, MOMENTUM = 0.9, WEIGHT_DECAY = 0.0005, BIAS_RATE = 2}
local GAMMA, POWER = 0.0001, 0.75
local FEATURES, KERNEL = {20, 50, 500}, 5

-- Rate of an iteration (from 0): Caffe's policy "inv".
function M.learning_rate(trial, iteration)
   return trial.learning_rate * (1 + GAMMA * iteration) ^ -POWER
end

-- Values an image has where the second pooling hands over to the first full layer.
function M.flat_features(trial)
   local function pooled_twice(side)
      return math.floor((math.floor((side - 4) / 2) - 4) / 2)
   end
   return FEATURES[2] * pooled_twice(trial.height) * pooled_twice(trial.width)
end

-- Numbers in [0, 1) as numpy.random.RandomState(seed) draws them: Mersenne Twister MT19937 of
-- Matsumoto and Nishimura 1998, https://doi.org/10.1145/272991.272995, 53 bits each.
function M.random(seed)
   local WORDS, SHIFT, WORD = 624, 397, 2 ^ 32
   local state, position = {[0] = seed % WORD}, WORDS
   for index = 1, WORDS - 1 do
      local last = state[index - 1]
      local mixed = bit.bxor(last, bit.rshift(last, 30)) % WORD
      -- in two halves: the whole product has more digits than a double
      local high = math.floor(mixed / 65536) * 1812433253 % 65536
      state[index] = (high * 65536 + mixed % 65536 * 1812433253 + index) % WORD
   end
   local function renew()
      for index = 0, WORDS - 1 do
         local upper = bit.band(state[index], 0x80000000)
         local word = bit.bor(upper, bit.band(state[(index + 1) % WORDS], 0x7FFFFFFF))
         local twist = word % 2 == 1 and 0x9908B0DF or 0
         local shifted = bit.bxor(bit.rshift(word, 1), twist)
         state[index] = bit.bxor(state[(index + SHIFT) % WORDS], shifted) % WORD
      end
      position = 0
   end
   local function next_word()
      if position == WORDS then renew() end
      local word = state[position]
      position = position + 1
      word = bit.bxor(word, bit.rshift(word, 11))
      word = bit.bxor(word, bit.band(bit.lshift(word, 7), 0x9D2C5680))
      word = bit.bxor(word, bit.band(bit.lshift(word, 15), 0xEFC60000))
      return bit.bxor(word, bit.rshift(word, 18)) % WORD
   end
   return function()
      local high, low = math.floor(next_word() / 32), math.floor(next_word() / 64)
      return (high * 67108864 + low) / 9007199254740992
   end
end

-- The four layers' weights as lists of numbers in the order of their shape, each with that shape:
-- convolutions (out, in, height, width), full layers (out, in). Biases are 0.
function M.first_weights(trial)
   local draw, layers = M.random(trial.seed), {}
   local shapes = {
      {FEATURES[1], trial.channels, KERNEL, KERNEL},
      {FEATURES[2], FEATURES[1], KERNEL, KERNEL},
      {FEATURES[3], M.flat_features(trial)},
      {trial.classes, FEATURES[3]},
   }
   for number, shape in ipairs(shapes) do
      local fan_in = 1
      for axis = 2, #shape do fan_in = fan_in * shape[axis] end
      local bound, values = math.sqrt(3 / fan_in), {}
      for index = 1, shape[1] * fan_in do values[index] = -bound + 2 * bound * draw() end
      layers[number] = {shape = shape, values = values}
   end
   return layers
end

return M
