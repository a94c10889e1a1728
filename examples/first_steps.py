"""First steps in Python: tune, load what was found, ask which configuration a job should run with.

Run it as a script or cell by cell. Run again, it goes on where it was:

    python examples/first_steps.py [framework=caffe dataset=mnist_5k budget=quick ...]
"""

# %% What to tune: names and values are those of the command line
import sys

from tuner import load_results, recommend, tune
from tuner.values.errors import NothingRecommended

settings = {"framework": "caffe", "dataset": "mnist_5k", "budget": "quick"}
settings |= dict(word.split("=", 1) for word in sys.argv[1:])

# %% Tune: two minutes with budget=quick
result = tune(**settings)
for point in result.verified:
    time_s = point.train_time_s
    print(
        f"{point.name}: {time_s.value:.3g} s ({time_s.low:.3g}-{time_s.high:.3g}), "
        f"{point.test_accuracy.value:.2%}: {point.verdict}"
    )

# %% All studies that are on record in this folder's MLflow
for study in load_results(settings["framework"], settings["dataset"]):
    print(study.run_id, "verified", len(study.front["verified"]), "configurations")

# %% Which configuration should a job run with that may train for a minute at most?
where = {
    name: settings[name] for name in ("framework", "dataset", "framework_path") if name in settings
}
try:
    answer = recommend(**where, max_train_time_s=60)
except NothingRecommended as error:
    print(error)
else:
    print("params:", answer["params"])
    print("environment:", answer["environment"])
