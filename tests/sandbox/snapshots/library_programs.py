"""Programs that use the threads or processes of a library, each with the output that it has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Program:
    """`setup` runs once, `use` before and after a restore; it prints `output`."""

    name: str
    setup: str
    use: str
    output: str = "done\n"


# Libraries that are dependencies of the tests.
IN_SUITE = (
    Program(
        "OpenMP of torch",
        "import torch; torch.set_num_threads(3); rows = torch.ones(2_000_000)",
        "print(float(rows.sum()), torch.get_num_threads())",
        "2000000.0 3\n",
    ),
    Program(
        "joblib",
        "from joblib import Parallel, delayed",
        "print(Parallel(n_jobs=2)(delayed(abs)(-n) for n in range(3)))",
        "[0, 1, 2]\n",
    ),
    Program(
        "ProcessPoolExecutor",
        "from concurrent.futures import ProcessPoolExecutor\nexecutor = ProcessPoolExecutor(2)",
        "print(list(executor.map(abs, [-1, -2])))",
        "[1, 2]\n",
    ),
    Program(
        "ThreadPoolExecutor",
        "from concurrent.futures import ThreadPoolExecutor\nexecutor = ThreadPoolExecutor(2)",
        "print(list(executor.map(abs, [-1, -2])))",
        "[1, 2]\n",
    ),
    Program(
        "multiprocessing.Pool",
        "from multiprocessing import Pool\npool = Pool(2)",
        "print(pool.map(abs, [-1, -2]))",
        "[1, 2]\n",
    ),
    Program(
        "ThreadPool",
        "from multiprocessing.pool import ThreadPool\npool = ThreadPool(2)",
        "print(pool.map(abs, [-1, -2]))",
        "[1, 2]\n",
    ),
    Program(
        "forkserver",
        "import multiprocessing\ncontext = multiprocessing.get_context('forkserver')",
        "process = context.Process(target=abs, args=(1,)); process.start(); process.join()\n"
        "print(process.exitcode)",
        "0\n",
    ),
    Program(
        "resource tracker",
        "from multiprocessing import shared_memory",
        "memory = shared_memory.SharedMemory(create=True, size=10)\n"
        "memory.close(); memory.unlink(); print('done')",
    ),
    Program("asyncio", "import asyncio", "print(await asyncio.to_thread(abs, -1))", "1\n"),
)

_NUMPY = "import numpy as np\nrows = np.random.default_rng(0).random((2000, 4))\n"
_HALVES = _NUMPY + "halves = np.arange(2000) % 2\n"

# Others, which `make test-libraries` installs.
OTHERS = (
    Program(
        "OpenMP of scikit-learn",
        _NUMPY + "import threadpoolctl; threadpoolctl.threadpool_limits(3)\n"
        "from sklearn.cluster import KMeans",
        "KMeans(3, n_init=1).fit(rows)\n"
        "print({i['num_threads'] for i in threadpoolctl.threadpool_info()"
        " if i['user_api'] == 'openmp'})",
        "{3}\n",
    ),
    Program(
        "processes of scikit-learn",
        _NUMPY + "from sklearn.model_selection import GridSearchCV; from sklearn.svm import SVC",
        "GridSearchCV(SVC(), {'C': [1, 2]}, n_jobs=2, cv=2)"
        ".fit(rows[:40], np.arange(40) % 2); print('done')",
    ),
    Program(
        "LightGBM",
        _HALVES + "import lightgbm",
        "lightgbm.train({'verbose': -1, 'num_threads': 3}, lightgbm.Dataset(rows, halves), 5)\n"
        "print('done')",
    ),
    Program(
        "XGBoost",
        _HALVES + "import xgboost",
        "xgboost.train({'nthread': 3}, xgboost.DMatrix(rows, halves), 5); print('done')",
    ),
    Program(
        "faiss",
        _NUMPY + "import faiss; faiss.omp_set_num_threads(3); index = faiss.IndexFlatL2(4)",
        "index.add(rows.astype('f')); index.search(rows.astype('f'), 3); print('done')",
    ),
    Program(
        "numba",
        "import os; os.environ['NUMBA_NUM_THREADS'] = '3'\nimport numba, numpy as np\n"
        "@numba.njit(parallel=True)\ndef total(values):\n    result = 0.0\n"
        "    for n in numba.prange(values.size): result += values[n]\n    return result",
        "print(total(np.ones(100_000)), numba.get_num_threads())",
        "100000.0 3\n",
    ),
    Program(
        "duckdb",
        "import duckdb\ndatabase = duckdb.connect()\n"
        "database.execute('create table t as select * from range(1000000) r(i)')",
        "print(database.execute('select count(distinct i % 7) from t').fetchall())",
        "[(7,)]\n",
    ),
    Program(
        "pyarrow",
        "import pyarrow, pyarrow.compute\n"
        "table = pyarrow.table({'a': list(range(100_000)), 'b': [1] * 100_000})",
        "print(table.group_by('b').aggregate([('a', 'sum')]).num_rows)",
        "1\n",
    ),
    Program(
        "numexpr",
        "import numexpr, numpy as np; numexpr.set_num_threads(3); values = np.ones(1_000_000)",
        "print(numexpr.evaluate('sum(values * 2)'))",
        "2000000.0\n",
    ),
    Program(
        "blosc2",
        "import blosc2, numpy as np",
        "blosc2.decompress2(blosc2.compress2(np.arange(1_000_000), nthreads=3)); print('done')",
    ),
    Program(
        "tokenizers",
        "import os; os.environ['TOKENIZERS_PARALLELISM'] = 'true'\nimport tokenizers\n"
        "model = tokenizers.models.WordLevel({'a': 0, '?': 1}, unk_token='?')\n"
        "tokenizer = tokenizers.Tokenizer(model)",
        "print(len(tokenizer.encode_batch(['a b'] * 1000)))",
        "1000\n",
    ),
    Program(
        "OpenCV",
        "import cv2, numpy as np; cv2.setNumThreads(3)\nimage = np.ones((2000, 2000, 3), 'f')",
        "print(cv2.GaussianBlur(image, (5, 5), 0).shape)",
        "(2000, 2000, 3)\n",
    ),
)
