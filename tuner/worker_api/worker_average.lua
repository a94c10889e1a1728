-- Averages the weights along a training, as worker_average.py: what average_weights means.
--
-- Tensors are those of Torch7: clone, copy, mul and add are all that is used of them.

local ETA, EVERY = 8, 10 -- as there

local M = {}

-- Return step and evaluate of a network whose averaged weights are judged. Training goes on from
-- the tensors themselves. Without average_weights both stay the same.
function M.averaged(trial, step, evaluate, tensors)
   if trial.average_weights ~= true then return step, evaluate end
   local means, done = {}, 0
   for number, tensor in ipairs(tensors) do means[number] = tensor:clone() end

   local function step_and_average(count)
      local loss
      while count > 0 do
         local part = math.min(count, EVERY - done % EVERY)
         loss, done, count = step(part), done + part, count - part
         if done % EVERY == 0 then
            local share = (ETA + 1) / (done / EVERY + ETA)
            for number, tensor in ipairs(tensors) do
               means[number]:mul(1 - share):add(share, tensor)
            end
         end
      end
      return loss
   end

   local function evaluate_average(split)
      if done < EVERY then return evaluate(split) end
      local kept = {}
      for number, tensor in ipairs(tensors) do
         kept[number] = tensor:clone()
         tensor:copy(means[number])
      end
      local accuracy = evaluate(split)
      for number, tensor in ipairs(tensors) do tensor:copy(kept[number]) end
      return accuracy
   end

   return step_and_average, evaluate_average
end

return M
