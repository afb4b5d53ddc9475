"""The thread pool, driven from a C program that links its sources directly."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tensorkiln.link.shared import CRT
from tests.emulated.machine import AARCH64

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")

PROGRAM = r"""
#include "crt.h"
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define N 1000
static int64_t seen[8][N];

static int threads_now(void)
{
    int count = -2;
    DIR *folder = opendir("/proc/self/task");
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static void mark(void *closure, int64_t begin, int64_t end)
{
    int64_t *row = closure;
    for (int64_t i = begin; i < end; i++)
        row[i]++;
}

static int loops(int row, int jobs)
{
    int64_t total = 0, sizes[] = {0, 1, 2, 3, 5, 7, 64, N};
    memset(seen[row], 0, sizeof seen[row]);
    for (int job = 0; job < jobs; job++) {
        const int64_t n = sizes[job % 8];
        kiln_parallel_for(mark, seen[row], n);
        total += n;
    }
    for (int i = 0; i < N; i++)
        total -= seen[row][i];
    return total != 0;
}

static void *caller(void *argument)
{
    return (void *)(intptr_t)loops((int)(intptr_t)argument, 4000);
}

static void nested(void *closure, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++)
        kiln_parallel_for(mark, closure, N);
}

static void ranges(void *closure, int64_t begin, int64_t end)
{
    int64_t *found = closure; /* static partition: which range an iteration is in */
    for (int64_t i = begin; i < end; i++)
        found[i] = begin * 1000 + end;
}

/* 100 iterations on 4 threads are 32 even chunks, whoever runs them: 4 of 4, then 28 of 3. */
static int chunks(void)
{
    int64_t found[100];
    kiln_set_num_threads(4);
    for (int round = 0; round < 500; round++) {
        memset(found, 0, sizeof found);
        kiln_parallel_for(ranges, found, 100);
        for (int64_t i = 0; i < 100; i++) {
            const int64_t begin = i < 16 ? i / 4 * 4 : 16 + (i - 16) / 3 * 3;
            if (found[i] != begin * 1000 + begin + (i < 16 ? 4 : 3))
                return 1;
        }
    }
    return 0;
}

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec)
         + (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static int many_callers(void)
{
    pthread_t thread[3];
    int failed = 0;
    for (int i = 0; i < 3; i++)
        pthread_create(&thread[i], NULL, caller, (void *)(intptr_t)(i + 1));
    for (int i = 0; i < 3; i++) {
        void *result;
        pthread_join(thread[i], &result);
        failed |= result != NULL;
    }
    return failed;
}

static int nesting(void)
{
    for (int round = 0; round < 200; round++) {
        memset(seen[0], 0, sizeof seen[0]);
        kiln_set_num_threads(1); /* one row, so the outer loop must not race on it */
        kiln_parallel_for(nested, seen[0], 3);
        if (seen[0][0] != 3 || seen[0][N - 1] != 3)
            return 1;
        kiln_set_num_threads(3);
        kiln_parallel_for(nested, seen[0], 1);
        if (seen[0][0] != 4)
            return 1;
    }
    return 0;
}

static void nested_apart(void *closure, int64_t begin, int64_t end)
{
    (void)closure;
    for (int64_t i = begin; i < end; i++)
        kiln_parallel_for(mark, seen[i], N);
}

static int nesting_in_workers(void)
{
    kiln_set_num_threads(4);
    memset(seen, 0, sizeof seen);
    for (int round = 0; round < 300; round++)
        kiln_parallel_for(nested_apart, NULL, 8);
    for (int row = 0; row < 8; row++)
        for (int i = 0; i < N; i++)
            if (seen[row][i] != 300)
                return 1;
    return 0;
}

static int forking(void)
{
    kiln_set_num_threads(4);
    if (loops(0, 100))
        return 1;
    const pid_t child = fork();
    if (child == 0) {
        if (threads_now() != 1 || loops(0, 2000) || threads_now() != 4)
            _exit(1);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    return status != 0 || loops(0, 100);
}

static int idling(void)
{
    kiln_set_num_threads(4);
    loops(0, 1000);
    usleep(20000); /* they are asleep now */
    const double before = cpu_seconds();
    usleep(300000);
    const double used = cpu_seconds() - before;
    printf("idle: %.4f s of CPU in 0.3 s\n", used);
    return used > 0.03;
}

static void work(void *closure, int64_t begin, int64_t end)
{
    (void)closure;
    for (volatile int64_t i = 0; i < (end - begin) * 20000; i++)
        ;
}

/* On one processor, a thread that waits hands it over to those that work. */
static int crowding(void)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    double used[2];
    for (int k = 0; k < 2; k++) {
        kiln_set_num_threads(k == 0 ? 1 : 4);
        const double before = cpu_seconds();
        for (int job = 0; job < 200; job++)
            kiln_parallel_for(work, NULL, 32);
        used[k] = cpu_seconds() - before;
    }
    printf("crowded: %.4f s of CPU, alone %.4f\n", used[1], used[0]);
    return used[1] > 1.3 * used[0];
}

static int counting(void)
{
    if (threads_now() != 1)
        return 1;
    kiln_set_num_threads(1);
    if (loops(0, 100) || threads_now() != 1)
        return 2;
    kiln_set_num_threads(3);
    kiln_parallel_for(mark, seen[0], 2); /* two iterations need one more thread, not two */
    if (threads_now() != 2)
        return 3;
    if (loops(0, 100) || threads_now() != 3)
        return 4;
    kiln_set_num_threads(2);
    if (loops(0, 1000) || threads_now() != 3)
        return 5;
    kiln_set_num_threads(5);
    return loops(0, 5000) || threads_now() != 5 ? 6 : 0;
}

static void own_parallel_for(kiln_body body, void *closure, int64_t n, int threads)
{
    seen[7][0] = threads;
    body(closure, 0, n / 2);
    body(closure, n / 2, n);
}

static int host_pool(void)
{
    const kiln_pool_api own = {1, sizeof own, own_parallel_for};
    kiln_set_num_threads(6);
    kiln_use_pool(&own);
    if (loops(0, 100) || seen[7][0] != 6 || threads_now() != 1)
        return 1;
    kiln_use_pool(NULL);
    return loops(0, 100) || threads_now() != 6;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "default") == 0)
        return printf("%d\n", kiln_get_num_threads()), 0;
    if (strcmp(what, "counting") == 0) return counting();
    if (strcmp(what, "loops") == 0) return kiln_set_num_threads(4), loops(0, 50000);
    if (strcmp(what, "chunks") == 0) return chunks();
    if (strcmp(what, "many_callers") == 0) return kiln_set_num_threads(4), many_callers();
    if (strcmp(what, "nesting") == 0) return nesting() || nesting_in_workers();
    if (strcmp(what, "forking") == 0) return forking();
    if (strcmp(what, "idling") == 0) return idling();
    if (strcmp(what, "crowding") == 0) return crowding();
    if (strcmp(what, "host_pool") == 0) return host_pool();
    return 99;
}
"""


PARTS = ("pool", "share", "worker", "lock", "threads", "parallel", "error", "os_posix")
SOURCES = [str(CRT / f"{name}.c") for name in PARTS]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pool")
    (folder / "pool_test.c").write_text(PROGRAM)
    flags = [
        "-std=c99",
        "-D_GNU_SOURCE",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fvisibility=hidden",
    ]
    command = ["gcc", *flags, "-I", str(CRT), "pool_test.c", *SOURCES, "-o", "pool_test"]
    subprocess.run([*command, "-lpthread", "-ldl"], check=True, cwd=folder)
    return folder / "pool_test"


def run(program: Path, scenario: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), scenario],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    "scenario",
    [
        "counting",
        "loops",
        "chunks",
        "many_callers",
        "nesting",
        "forking",
        "idling",
        "crowding",
        "host_pool",
    ],
)
def test_pool(program: Path, scenario: str) -> None:
    process = run(program, scenario)
    assert process.returncode == 0, f"{process.returncode} {process.stdout}{process.stderr}"


@pytest.mark.emulated
def test_pool_of_another_machine(tmp_path: Path) -> None:
    """Its code and its system calls; the emulator orders memory as this machine does."""
    AARCH64.require()
    (tmp_path / "pool_test.c").write_text(PROGRAM)
    program_path = AARCH64.build(tmp_path / "pool_test", tmp_path / "pool_test.c", *SOURCES)
    # An emulator has threads of its own, so the cases that count threads say nothing here.
    for scenario in ("loops", "chunks", "many_callers", "nesting", "idling"):
        command = AARCH64.command("cortex-a72", program_path, scenario)
        process = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert process.returncode == 0, (
            f"{scenario}: {process.returncode} {process.stdout}{process.stderr}"
        )


def test_default_number_of_threads(program: Path) -> None:
    allowed = len(os.sched_getaffinity(0))
    assert 1 <= int(run(program, "default", KILN_NUM_THREADS="").stdout) <= allowed
    assert run(program, "default", KILN_NUM_THREADS="1").stdout == "1\n"
    assert int(run(program, "default", KILN_NUM_THREADS="100000").stdout) <= allowed
    process = subprocess.run(
        ["taskset", "-c", str(min(os.sched_getaffinity(0))), str(program), "default"],
        capture_output=True,
        text=True,
    )
    assert process.stdout == "1\n"


def _v1(group: str, quota: str, period: str) -> dict[str, str]:
    """The files of a group of version 1."""
    return {f"cpu/{group}/cpu.cfs_quota_us": quota, f"cpu/{group}/cpu.cfs_period_us": period}


QUOTAS = [
    ("no cgroups", {}, None),
    ("version 2", {"list": "0::/a/b\n", "a/b/cpu.max": "150000 100000\n"}, 1),
    ("half a CPU", {"list": "0::/a\n", "a/cpu.max": "50000 100000\n"}, 1),
    ("of a parent", {"list": "0::/a/b\n", "a/cpu.max": "300000 100000", "a/b/cpu.max": "max 1"}, 3),
    ("none", {"list": "0::/\n", "cpu.max": "max 100000\n"}, None),
    (
        "version 1",
        {
            "list": "5:memory:/x\n3:cpu,cpuacct:/a\n0::/\n",
            "cpu/a/cpu.cfs_quota_us": "200000\n",
            "cpu/a/cpu.cfs_period_us": "100000\n",
        },
        2,
    ),
    (
        "version 1, no limit",
        {
            "list": "1:cpu:/a",
            "cpu/a/cpu.cfs_quota_us": "-1\n",
            "cpu/a/cpu.cfs_period_us": "100000\n",
        },
        None,
    ),
    # CentOS 7 lists its controllers in this order.
    ("version 1, other order", {"list": "4:cpuacct,cpu:/a", **_v1("a", "300000", "100000")}, 3),
    ("version 1, of a parent", {"list": "4:cpu:/a/b", **_v1("a", "200000", "100000")}, 2),
    (
        "version 1, the least counts",
        {"list": "4:cpu:/a/b", **_v1("a", "400000", "100000"), **_v1("a/b", "600000", "100000")},
        4,
    ),
    # In a container without a namespace of its own the list has the host's path.
    ("version 1, mounted", {"list": "4:cpu:/docker/1f", **_v1(".", "200000", "100000")}, 2),
    ("version 2, mounted", {"list": "0::/docker/1f", "cpu.max": "200000 100000"}, 2),
    (
        "both versions",
        {"list": "4:cpu:/a\n0::/a", **_v1("a", "500000", "100000"), "a/cpu.max": "max 100000"},
        5,
    ),
    ("other controllers", {"list": "4:cpuset:/a\n5:cpuacct:/a", **_v1("a", "1", "1")}, None),
    ("no period", {"list": "4:cpu:/a", "cpu/a/cpu.cfs_quota_us": "200000"}, None),
    ("no quota", {"list": "4:cpu:/a", "cpu/a/cpu.cfs_period_us": "100000"}, None),
    ("quota of 0", {"list": "4:cpu:/a", **_v1("a", "0", "100000")}, None),
    ("period of 0", {"list": "4:cpu:/a", **_v1("a", "100000", "0")}, None),
    ("text", {"list": "4:cpu:/a", **_v1("a", "many", "100000")}, None),
    ("empty", {"list": "", "cpu.max": "100000 100000"}, None),
    ("empty files", {"list": "0::/a\n4:cpu:/a", "a/cpu.max": "", **_v1("a", "", "")}, None),
    ("one number", {"list": "0::/a", "a/cpu.max": "200000"}, None),
    ("negative", {"list": "0::/a", "a/cpu.max": "-200000 100000"}, None),
    ("too large", {"list": "0::/a", "a/cpu.max": f"{10**30} 100000"}, None),
    ("more than there are", {"list": "0::/a", "a/cpu.max": "3000000 100000"}, None),
    ("no newline", {"list": "0::/a", "a/cpu.max": "200000 100000"}, 2),
    ("a long path", {"list": "0::/" + "x" * 3900, "cpu.max": "200000 100000"}, 2),
    ("a list without end", {"list": "1:name=x:/y\n" * 2000, "cpu.max": "1 1"}, None),
    ("garbage", {"list": "what\n:::\n0:\n0::/a\n", "a/cpu.max": "no number"}, None),
]


@pytest.mark.parametrize(("files", "quota"), [q[1:] for q in QUOTAS], ids=[q[0] for q in QUOTAS])
def test_cgroup_quota(tmp_path: Path, files: dict[str, str], quota: int | None) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "main.c").write_text(
        '#include "crt.h"\nint main(void) { return kiln_default_threads(); }\n'
    )
    # A sched_getaffinity of our own, so that the quota decides on any machine.
    (tmp_path / "cpus.c").write_text(
        "#define _GNU_SOURCE\n#include <sched.h>\n"
        "int sched_getaffinity(pid_t p, size_t s, cpu_set_t *c)\n"
        "{ (void)p; (void)s; CPU_ZERO(c); for (int i = 0; i < 9; i++) CPU_SET(i, c); return 0; }\n"
    )
    places = [f'-DCGROUP_LIST="{tmp_path}/list"', f'-DCGROUP_TREE="{tmp_path}"']
    command = ["gcc", "-std=c99", *places, "-I", str(CRT), "main.c", "cpus.c"]
    parts = ("threads", "error", "os_posix")
    sources = [*(str(CRT / f"{name}.c") for name in parts), "-lpthread", "-ldl"]
    subprocess.run([*command, *sources, "-o", "threads"], check=True, cwd=tmp_path)
    environ = {k: v for k, v in os.environ.items() if k != "KILN_NUM_THREADS"}
    assert subprocess.run([str(tmp_path / "threads")], env=environ).returncode == (quota or 9)
