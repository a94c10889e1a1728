"""Counts the steps of a training program for ``tuner wrap``; the program itself is not changed.

Python imports this module when it starts, as its folder is first on PYTHONPATH. It waits until one
of the libraries below is imported, and wraps the method that does one step. It reports how often
that was called, at most 20 times a second and once at the end. Once there is a file ``unhook``
beside the reports, it says nothing more. It runs in the program's own interpreter, does nothing
before Python 3.5, and never fails.
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


class _Counter:
    """Counts the steps of this process and reports them."""

    def __init__(self, library):
        self._library = library
        self._path = os.environ["TUNER_REPORT"]
        self._begin()
        atexit.register(self._tell_last)

    def _begin(self):
        self._steps = 0
        self._told_s = 0.0
        self._seen_enough = False
        self._lock = threading.Lock()  # threads that train side by side report in order
        self._pid = os.getpid()
        # of this counter: after exec, or a reload, another begins at 0 in the same process
        self._name = "%d.%d" % (self._pid, time.time_ns() if hasattr(time, "time_ns") else 0)

    def step(self):
        if self._pid != os.getpid():  # forked: the steps so far are those of the parent
            self._begin()
        with self._lock:
            self._count()

    def _count(self):
        self._steps += 1
        if self._seen_enough:
            return
        now = time.monotonic()
        if now - self._told_s >= _EVERY_S:
            self._told_s = now
            try:
                self._tell(now)
            except Exception:  # the program must not notice
                self._seen_enough = True

    def _tell_last(self):
        try:
            if self._steps and self._pid == os.getpid() and not self._seen_enough:
                self._tell(time.monotonic())
        except Exception:  # noqa: S110 - the same
            pass

    def _tell(self, now):
        # opened each time, as a program may close all files that it does not know
        line = {"v": 1, "step": self._steps, "t": now, "hook": self._library, "pid": self._name}
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
