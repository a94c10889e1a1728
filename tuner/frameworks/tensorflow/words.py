"""The language model in TensorFlow: an LSTM unrolled between an embedding and a full layer.

As the tutorial ptb_word_lm.py unrolls it. Steps come first.
"""

import functools
import itertools

import tensorflow as tf
import worker_words

UNITS, STEPS = worker_words.UNITS, worker_words.STEPS


def made(trial):
    """Return the variables: embedding, those of each layer, and those of the scores."""
    embedding, layers, scores = worker_words.first_weights(trial)
    turned = [(below.T, own.T, biases) for below, own, biases in layers]
    variables = [tuple(map(tf.Variable, each)) for each in turned]
    return tf.Variable(embedding), variables, (tf.Variable(scores[0].T), tf.Variable(scores[1]))


def layer(seen, weights, state):
    """Apply a layer of the LSTM; returns what it answers, (steps, texts, units), and its state."""
    below, own, biases = weights
    hidden, cell = tf.unstack(state)
    answers = []
    # what comes from below needs no state, and so is done for all steps at once
    for part in tf.unstack(tf.tensordot(seen, below, 1) + biases):
        admit, forget, candidate, show = tf.split(part + hidden @ own, 4, axis=1)
        cell = tf.sigmoid(forget) * cell + tf.sigmoid(admit) * tf.tanh(candidate)
        hidden = tf.sigmoid(show) * tf.tanh(cell)
        answers.append(hidden)
    return tf.stack(answers), tf.stack([hidden, cell])


def prepare(trial):
    """Build and compile the net; returns an iteration's function, values, step and evaluate."""
    embedding, layers, scores = made(trial)
    values = [embedding, *itertools.chain(*layers), *scores]

    def losses(words, following, states):
        seen, after = tf.gather(embedding, words), []
        for weights, state in zip(layers, tf.unstack(states)):
            seen, last = layer(seen, weights, state)
            after.append(last)
        answers = tf.tensordot(seen, scores[0], 1) + scores[1]
        found = tf.nn.sparse_softmax_cross_entropy_with_logits(following, answers)
        return found, tf.stack(after)

    compiled = functools.partial(tf.function, jit_compile=trial.xla)

    @compiled
    def learn(words, following, states, rate):
        with tf.GradientTape() as tape:
            found, states = losses(words, following, states)
            mean = tf.reduce_mean(found)
            loss = STEPS * mean
        slopes = [tf.convert_to_tensor(each) for each in tape.gradient(loss, values)]
        slopes, _ = tf.clip_by_global_norm(slopes, worker_words.CLIP)
        for value, slope in zip(values, slopes):
            value.assign_sub(rate * slope)
        return mean, states

    judge = compiled(losses)

    def given(words, following, begins, states):
        fresh = tf.zeros((len(layers), 2, len(words), UNITS)) if begins else states[0]
        return tf.constant(words.T), tf.constant(following.T), fresh

    # the first run compiles, at a rate that changes nothing
    first = (*given(*next(worker_words.parts(trial)), [None]), tf.constant(0.0))
    run = learn.get_concrete_function(*first)
    run(*first)
    stream, iterations, learning = worker_words.parts(trial), itertools.count(), [None]

    def step(count):
        for _ in range(count):
            rate = tf.constant(worker_words.learning_rate(trial, next(iterations)), tf.float32)
            mean, learning[0] = run(*given(*next(stream), learning), rate)
        return mean.numpy()

    def evaluate(split):
        states = [None]

        def judged(*part):
            found, states[0] = judge(*given(*part, states))
            return found.numpy().T

        return worker_words.perplexity(trial, split, judged)

    return run, values, step, evaluate
