"""The language model in PyTorch: ``nn.LSTM`` between an embedding and a full layer."""

import torch
import worker_words
from torch import nn
from torch.nn import functional


class Model(nn.Module):
    """Scores of the words that may follow, of words and state, steps first."""

    def __init__(self, trial):
        super().__init__()
        units = worker_words.UNITS
        self.embedding = nn.Embedding(trial.classes, units)
        self.lstm = nn.LSTM(units, units, worker_words.LAYERS)
        self.scores = nn.Linear(units, trial.classes)
        embedding, layers, (weights, biases) = worker_words.first_weights(trial)
        first = {"embedding.weight": embedding, "scores.weight": weights, "scores.bias": biases}
        for number, each in enumerate(layers):
            for kind, values in zip(("weight_ih", "weight_hh", "bias_ih"), each, strict=True):
                first["lstm.%s_l%d" % (kind, number)] = values
        for name, parameter in self.named_parameters():
            if name in first:
                parameter.data = torch.from_numpy(first[name])
            else:  # a gate has two biases here, of which one does nothing more
                parameter.data.zero_()
                parameter.requires_grad_(False)
        self.lstm.flatten_parameters()

    def forward(self, words, state):
        """Return scores (steps, texts, words) and the state."""
        answers, state = self.lstm(self.embedding(words), state)
        return self.scores(answers), state


def prepare(trial):
    """Build the net; returns it, and step and evaluate for the training loop."""
    net = Model(trial)
    learnt = [each for each in net.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(learnt, trial.learning_rate)
    rate = lambda it: worker_words.learning_rate(trial, it) / trial.learning_rate
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    stream = worker_words.parts(trial)
    state = [None, None]  # of training, of judging

    def losses(words, following, begins, judging):
        words, wanted = (torch.from_numpy(each.T.astype("int64")) for each in (words, following))
        answers, after = net(words, None if begins else state[judging])
        state[judging] = [each.detach() for each in after]
        found = functional.cross_entropy(answers.flatten(0, 1), wanted.flatten(), reduction="none")
        return found.view(wanted.shape)

    def step(count):
        for _ in range(count):
            optimizer.zero_grad()
            mean = losses(*next(stream), judging=False).mean()
            (worker_words.STEPS * mean).backward()
            nn.utils.clip_grad_norm_(learnt, worker_words.CLIP)
            optimizer.step()
            rates.step()
        return mean.item()

    def evaluate(split):
        with torch.inference_mode():
            judge = lambda *given: losses(*given, judging=True).T.numpy()
            return worker_words.perplexity(trial, split, judge)

    return net, step, evaluate
