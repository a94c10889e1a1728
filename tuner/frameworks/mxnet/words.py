"""The language model in MXNet: its fused LSTM between an embedding and a full layer."""

import mxnet as mx
import numpy as np
import worker_words

UNITS, LAYERS, STEPS = worker_words.UNITS, worker_words.LAYERS, worker_words.STEPS
STATE = ("hidden", "cell")


def network(trial):
    """Return a symbol of the probabilities of the words that may follow, and of the state."""
    weights, biases = [], []
    for number in range(LAYERS):
        for kind in ("input", "recurrent"):
            each = mx.sym.Variable("%s%d" % (kind, number), shape=(4 * UNITS, UNITS))
            weights.append(each.reshape((-1,)))
        # a gate has two biases here, of which one does nothing more
        biases += [mx.sym.Variable("bias%d" % number, shape=(4 * UNITS,))]
        biases += [mx.sym.zeros((4 * UNITS,))]
    seen = mx.sym.Embedding(
        mx.sym.Variable("words"), input_dim=trial.classes, output_dim=UNITS, name="embedding"
    )
    answers, *state = mx.sym.RNN(
        seen,
        mx.sym.concat(*weights, *biases, dim=0),
        *map(mx.sym.Variable, STATE),
        state_size=UNITS,
        num_layers=LAYERS,
        mode="lstm",
        state_outputs=True,
    )
    flat = answers.reshape((-1, UNITS))
    scores = mx.sym.FullyConnected(flat, num_hidden=trial.classes, name="scores")
    # of a sum over the steps, and of a mean over the texts
    odds = mx.sym.SoftmaxOutput(
        scores, mx.sym.Variable("following"), grad_scale=1.0 / trial.batch_size
    )
    return mx.sym.Group([odds, *map(mx.sym.BlockGrad, state)])


def first_weights(trial):
    """Return the first weights by the names of their variables."""
    embedding, layers, (weights, biases) = worker_words.first_weights(trial)
    first = {"embedding_weight": embedding, "scores_weight": weights, "scores_bias": biases}
    for number, each in enumerate(layers):
        for kind, values in zip(("input", "recurrent", "bias"), each, strict=True):
            first["%s%d" % (kind, number)] = values
    return {name: mx.nd.array(values) for name, values in first.items()}


class Texts:
    """The network over so many texts side by side; ``run`` goes on from their state."""

    def __init__(self, symbol, rows, weights, gradients):
        sizes = {"words": (STEPS, rows), "following": (STEPS * rows,)}
        sizes.update(dict.fromkeys(STATE, (LAYERS, rows, UNITS)))
        self._given = {name: mx.nd.zeros(size) for name, size in sizes.items()}
        # to judge as well as to train: else oneDNN keeps the weights it has seen first
        wanted = {
            name: "write" if name in gradients else "null" for name in symbol.list_arguments()
        }
        self._net = symbol.bind(mx.cpu(), {**weights, **self._given}, gradients, wanted)

    def run(self, words, following, begins):
        """Return the negative logarithm of each following word's probability, (steps, texts)."""
        self._given["words"][:] = words.T
        self._given["following"][:] = following.T.reshape(-1)
        for number, name in enumerate(STATE, 1):
            self._given[name][:] = 0 if begins else self._net.outputs[number]
        odds = self._net.forward(is_train=True)[0]
        likelihood = mx.nd.pick(odds, self._given["following"]).reshape(words.T.shape)
        # a NaN stays one; certainty of the wrong answer is no infinity
        return -mx.nd.log(mx.nd.maximum(likelihood, np.finfo(np.float32).tiny))

    def backward(self):
        """Compute the gradients of what was run last."""
        self._net.backward()


def prepare(trial):
    """Build the net; returns its weights, and step and evaluate for the training loop."""
    symbol, weights = network(trial), first_weights(trial)
    gradients = {name: mx.nd.zeros_like(each) for name, each in weights.items()}
    texts = Texts(symbol, trial.batch_size, weights, gradients)
    tester = Texts(symbol, worker_words.EVAL_ROWS, weights, gradients)
    stream = worker_words.parts(trial)
    done = [0]
    # the first pass builds what is then kept
    texts.run(*next(worker_words.parts(trial)))
    texts.backward()
    mx.nd.waitall()

    def step(count):
        for _ in range(count):
            losses = texts.run(*next(stream))
            texts.backward()
            mx.gluon.utils.clip_global_norm(list(gradients.values()), worker_words.CLIP)
            rate = worker_words.learning_rate(trial, done[0])
            for name, weight in weights.items():
                mx.nd.sgd_update(weight, gradients[name], lr=rate, wd=0.0, out=weight)
            done[0] += 1
        mean = losses.mean().asscalar()
        mx.nd.waitall()  # the engine works behind our back: the update is still to come
        return mean

    def evaluate(split):
        judge = lambda *given: tester.run(*given).asnumpy().T
        return worker_words.perplexity(trial, split, judge)

    return weights.values(), step, evaluate
