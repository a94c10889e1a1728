-- Torch7: the networks of its demos for MNIST and CIFAR-10, and Caffe's LeNet.

package.path = os.getenv("PYTHONPATH"):match("[^:]+") .. "/?.lua;" .. package.path
local worker_api = require "worker_api"
local torch = worker_api.import("torch")
worker_api.import("nn")
local lenet = require "worker_lenet"
local average = require "worker_average"

local arrays = {}
torch.setdefaulttensortype("torch.FloatTensor")

-- Values of an idx file, in the shape given for each.
local function read(path, ...)
   local shape, _, offset = worker_api.read_idx(path)
   local sizes = torch.LongStorage({shape[1], ...})
   return torch.ByteTensor(torch.ByteStorage(path), offset + 1, sizes)
end

-- Images in a border of zeros, and labels from 1; read once a session.
local function load(trial, split, border)
   local path = trial[split .. "_images"]
   if not arrays[path .. border] then
      local images = read(path, trial.channels, trial.height, trial.width):float()
      images = nn.SpatialZeroPadding(border, border, border, border):forward(images)
      arrays[path .. border] = {images, read(trial[split .. "_labels"]):long():add(1)}
   end
   return unpack(arrays[path .. border])
end

-- The convnet of train-a-digit-classifier in torch/demos, for images of 32x32.
local function digits(trial)
   local net = nn.Sequential()
   net:add(nn.SpatialConvolution(trial.channels, 32, 5, 5)):add(nn.Tanh())
   net:add(nn.SpatialMaxPooling(3, 3, 3, 3, 1, 1))
   net:add(nn.SpatialConvolution(32, 64, 5, 5)):add(nn.Tanh())
   net:add(nn.SpatialMaxPooling(2, 2, 2, 2)):add(nn.Reshape(64 * 3 * 3, true))
   net:add(nn.Linear(64 * 3 * 3, 200)):add(nn.Tanh()):add(nn.Linear(200, trial.classes))
   return net
end

-- The convnet of train-on-cifar in torch/demos, its maps joined by random tables.
local function colours(trial)
   local net = nn.Sequential()
   net:add(nn.SpatialConvolutionMap(nn.tables.random(trial.channels, 16, 1), 5, 5))
   net:add(nn.Tanh()):add(nn.SpatialMaxPooling(2, 2, 2, 2))
   net:add(nn.SpatialConvolutionMap(nn.tables.random(16, 256, 4), 5, 5))
   net:add(nn.Tanh()):add(nn.SpatialMaxPooling(2, 2, 2, 2)):add(nn.Reshape(256 * 5 * 5, true))
   net:add(nn.Linear(256 * 5 * 5, 128)):add(nn.Tanh()):add(nn.Linear(128, trial.classes))
   return net
end

-- Caffe's LeNet.
local function caffe(trial)
   local net, flat = nn.Sequential(), lenet.flat_features(trial)
   net:add(nn.SpatialConvolution(trial.channels, 20, 5, 5)):add(nn.SpatialMaxPooling(2, 2, 2, 2))
   net:add(nn.SpatialConvolution(20, 50, 5, 5)):add(nn.SpatialMaxPooling(2, 2, 2, 2))
   net:add(nn.Reshape(flat, true)):add(nn.Linear(flat, 500)):add(nn.ReLU())
   net:add(nn.Linear(500, trial.classes))
   local tensors = net:parameters()
   for number, layer in ipairs(lenet.first_weights(trial)) do
      local weights = tensors[2 * number - 1]
      weights:copy(torch.FloatTensor(layer.values):viewAs(weights))
      tensors[2 * number]:zero()
   end
   return net
end

-- optim.sgd as the demos call it, or Caffe's SGD with momentum; weights and biases alternate.
local function descend(trial, tensors, gradients, iteration, velocities)
   for number, tensor in ipairs(tensors) do
      if trial.model == "default" then
         tensor:add(-trial.learning_rate / (1 + 5e-7 * iteration), gradients[number])
      else
         local factor = number % 2 == 0 and lenet.BIAS_RATE or 1
         local rate, velocity = factor * lenet.learning_rate(trial, iteration), velocities[number]
         velocity:mul(lenet.MOMENTUM):add(rate, gradients[number])
         tensor:add(-1, velocity:add(rate * lenet.WEIGHT_DECAY, tensor))
      end
   end
end

-- Build net and data; returns step and evaluate for the training loop.
local function prepare(trial)
   if type(trial.threads) == "number" then torch.setnumthreads(trial.threads) end
   torch.manualSeed(trial.seed)
   local own, colour = trial.model == "default", trial.channels == 3
   local border = own and not colour and (32 - trial.height) / 2 or 0
   local images, labels = load(trial, "train", border)
   local size, count = trial.batch_size, images:size(1)
   local refusal = "batch_size %d is more than the %d training images"
   if size > count then worker_api.impossible(refusal, size, count) end
   local net = (not own and caffe or colour and colours or digits)(trial):add(nn.LogSoftMax())
   local criterion, mean, factor = nn.ClassNLLCriterion(), 0, own and 1 / 255 or lenet.SCALE
   if border > 0 then mean, factor = images:mean(), 1 / images:std() end -- as those of the demo
   local iteration, batches, velocities = 0, math.floor(count / size), {}
   local tensors, gradients = net:parameters()
   for number, tensor in ipairs(tensors) do velocities[number] = tensor:clone():zero() end

   local function part(all, start, length)
      return all:narrow(1, start, length):clone():add(-mean):mul(factor)
   end

   local function step(steps)
      for _ = 1, steps do
         local start = iteration % batches * size + 1
         local inputs, targets = part(images, start, size), labels:narrow(1, start, size)
         net:zeroGradParameters()
         criterion:forward(net:forward(inputs), targets)
         net:backward(inputs, criterion:backward(net.output, targets))
         descend(trial, tensors, gradients, iteration, velocities)
         iteration = iteration + 1
      end
      return criterion.output
   end

   local function evaluate(split)
      local right, all, wanted = 0, load(trial, split, border)
      for start = 1, all:size(1), 500 do
         local length = math.min(500, all:size(1) - start + 1)
         local _, best = net:forward(part(all, start, length)):max(2)
         right = right + best:view(-1):eq(wanted:narrow(1, start, length)):sum()
      end
      return right / all:size(1)
   end

   return average.averaged(trial, step, evaluate, tensors)
end

local function report() return {threads = torch.getnumthreads()} end
worker_api.serve(prepare, {versions = {torch = "7"}, report = report})
