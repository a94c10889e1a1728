"""Counts the steps of a training program for ``tuner wrap``; the program itself is not changed.

Python imports this module when it starts, as its folder is first on PYTHONPATH. It waits until one
of the libraries below is imported, and wraps the method that does one step. It reports how often
that was called, at most 20 times a second and once at the end. A step of PyTorch on a GPU is
reported once the GPU has done it. Once there is a file ``unhook`` beside the reports, it says
nothing more. It runs in the program's own interpreter, does nothing before Python 3.5, and never
fails.
"""

import atexit
import json
import os
import sys
import threading
import time

_EVERY_S = 0.05

# module: class, method of which each call is one step, name of the library
_STEPS = {
    "torch.optim.optimizer": ("Optimizer", "zero_grad", "PyTorch"),  # before PyTorch 2
    "keras.src.callbacks.callback_list": ("CallbackList", "on_train_batch_end", "Keras"),
    "keras.src.callbacks": ("CallbackList", "on_train_batch_end", "Keras"),
    "keras.callbacks": ("CallbackList", "on_train_batch_end", "Keras"),
    "xgboost.core": ("Booster", "update", "XGBoost"),
    "lightgbm.basic": ("Booster", "update", "LightGBM"),
    "sklearn.neural_network._stochastic_optimizers": (
        "BaseOptimizer",
        "update_params",
        "scikit-learn",
    ),
    "mxnet.gluon.trainer": ("Trainer", "step", "MXNet"),
    "chainer.optimizer": ("GradientMethod", "update", "Chainer"),
}


class _Gpu:
    """Tells when the GPU that PyTorch uses has done a step.

    A program queues the work of its steps and goes on, up to a thousand operations ahead of the
    GPU. An event in the queue has the time, by the GPU's clock, when all before it was done.
    """

    def __init__(self):
        self._origin = None  # an event, and when it was done by the clock of the reports
        self.queued = []  # steps, each with its event, that the GPU may not have done
        self._fails = False

    def _is_used(self):
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        return not self._fails and cuda is not None and cuda.is_initialized()

    def queue(self, step):
        """Put an event behind a step; return whether a GPU is in use."""
        try:
            if not self._is_used():
                return False
            cuda = sys.modules["torch"].cuda
            if cuda.is_current_stream_capturing():  # nothing is done now, and nothing may wait
                return True
            event = cuda.Event(enable_timing=True)
            event.record()
            if self._origin is None:
                event.synchronize()
                self._origin = event, time.monotonic()
            self.queued.append((step, event))
        except Exception:  # another device, or no event: the host's clock is left
            self._fails, self.queued = True, []
        return not self._fails

    def done(self):
        """Return the steps that the GPU has done since the last call, and when."""
        found = []
        try:
            if not self.queued or sys.modules["torch"].cuda.is_current_stream_capturing():
                return found
            first, began_s = self._origin
            while self.queued and self.queued[0][1].query():
                step, event = self.queued[0]
                found.append((step, began_s + first.elapsed_time(event) / 1000))
                del self.queued[0]
        except Exception:
            self._fails, self.queued = True, []
        return found


class _Counter:
    """Counts the steps of this process and reports them."""

    def __init__(self, library):
        self._library = library
        self._path = os.environ["TUNER_REPORT"]
        self._begin()
        atexit.register(self._tell_last)

    def _begin(self):
        self._steps = 0
        self._gpu = _Gpu()
        self._asked_s = 0.0
        self._told = 0, 0.0  # the last step that was reported, and its time
        self._seen_enough = False
        self._lock = threading.Lock()  # threads that train side by side report in order
        self._pid = os.getpid()
        # of this counter: after exec, or a reload, another begins at 0 in the same process
        self._name = "%d.%d" % (self._pid, time.time_ns() if hasattr(time, "time_ns") else 0)

    def step(self):
        if self._seen_enough:
            return
        if self._pid != os.getpid():  # forked: the steps so far are those of the parent
            self._begin()
        with self._lock:
            self._count()

    def _count(self):
        self._steps += 1
        now = time.monotonic()
        try:
            if self._gpu.queued:
                self._tell_done()
            if now - self._asked_s >= _EVERY_S:
                self._asked_s = now
                if not self._gpu.queue(self._steps):
                    self._tell(self._steps, now)
        except Exception:  # the program must not notice
            self._seen_enough = True

    def _tell_last(self):
        try:
            if self._steps and self._pid == os.getpid() and not self._seen_enough:
                self._tell_done()
                if self._told[0] < self._steps:
                    self._tell(self._steps, time.monotonic())
        except Exception:  # noqa: S110 - the same
            pass

    def _tell_done(self):
        for step, at in self._gpu.done():
            self._tell(step, at)

    def _tell(self, step, at):
        at = max(at, self._told[1])  # two clocks may differ by a little
        self._told = step, at
        # opened each time, as a program may close all files that it does not know
        line = {"v": 1, "step": step, "t": at, "hook": self._library, "pid": self._name}
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, (json.dumps(line) + "\n").encode())
        finally:
            os.close(file)
        if os.path.exists(os.path.join(os.path.dirname(self._path), "unhook")):
            self._seen_enough = True


def _hook(module, owner_name, method_name, library):
    counter = _Counter(library)
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is not None:
        register(lambda *_: counter.step())
        return
    owner = getattr(module, owner_name)
    if "tuner_counts" in vars(owner):  # seen under another name of the module
        return
    method = getattr(owner, method_name)

    def counted(*args, **kwargs):
        answer = method(*args, **kwargs)
        counter.step()
        return answer

    counted.__name__ = method_name
    counted.__doc__ = method.__doc__
    setattr(owner, method_name, counted)
    owner.tuner_counts = True


class _Finder:
    """Finds the modules above like the other finders do, and hooks them once they are loaded."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name not in _STEPS:
            return None
        for finder in sys.meta_path:
            find = None if finder is cls else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None and spec.loader is not None:
                cls._wrap(name, spec.loader)
                return spec
        return None

    @staticmethod
    def _wrap(name, loader):
        load = loader.exec_module

        def load_and_hook(module):
            load(module)
            try:
                _hook(module, *_STEPS[name])
            except Exception:  # noqa: S110 - another version: there are other ways to count
                pass

        try:
            loader.exec_module = load_and_hook
        except AttributeError:
            pass


def _import_the_next():
    """Import the ``sitecustomize`` that this one hides, and hide this one's folder."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != here]
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401 - another one, as this one's folder is hidden
    except ImportError:
        sys.modules["sitecustomize"] = own


if os.environ.get("TUNER_REPORT") and sys.version_info >= (3, 5):
    sys.meta_path.insert(0, _Finder)
_import_the_next()
