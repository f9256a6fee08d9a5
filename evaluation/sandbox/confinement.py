"""What a process may do before code that nobody has read runs in it: limits, and the kernel's own fences (Linux).

Three layers, each used where the kernel permits it, none needing privileges; what took effect is returned as a record.

- `seccomp`: an allow-list of system calls. No sockets, no new processes, no signals to anyone, no tracing, no opening
  for writing, whatever other call exists or will exist.
- `landlock`: of the file system only Python's standard library, numpy and the system's libraries can be read.
- `namespaces`: no network device, no other process to be seen, and the end of the process ends all it started.

Under root the process becomes `nobody`. Imports the standard library alone: it runs in `child.py`.
"""

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

LAYERS = ("namespaces", "landlock", "seccomp")
NOBODY = 65534
THIRD_PARTY = ("numpy", "numpy.libs")  # what a solution may import beside the standard library

# options of prctl(2), from linux/prctl.h
PDEATHSIG, DUMPABLE, KEEPCAPS, GET_SECCOMP, SET_SECCOMP, NO_NEW_PRIVS = 1, 4, 8, 21, 22, 38
# flags of unshare(2), from linux/sched.h: uts, ipc, pid, net; an ordinary user needs a user namespace around them
ISOLATED = 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
USER = 0x10000000
DAC_READ_SEARCH = 1 << 2  # the capability to read any file, from linux/capability.h

# linux/landlock.h: system calls, the kinds of access each version of the interface knows, and those granted here
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
ACCESS_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
READ_FILE, READ_DIR = 1 << 2, 1 << 3

# System calls that computing needs, with their numbers on x86_64 and aarch64 (asm/unistd_64.h, asm-generic/unistd.h;
# "-" where an architecture lacks one). Absent on purpose: whatever makes processes, sockets, signals or files.
SYSTEM_CALLS = """
    read 0 63, write 1 64, close 3 57, stat 4 -, fstat 5 80, lstat 6 -, poll 7 -, lseek 8 62, mmap 9 222,
    mprotect 10 226, munmap 11 215, brk 12 214, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139,
    ioctl 16 29, pread64 17 67, readv 19 65, writev 20 66, access 21 -, pipe 22 -, select 23 -, sched_yield 24 124,
    mremap 25 216, madvise 28 233, dup 32 23, dup2 33 -, dup3 292 24, nanosleep 35 101, getitimer 36 102, alarm 37 -,
    setitimer 38 103, getpid 39 172, exit 60 93, wait4 61 260, uname 63 160, getcwd 79 17, chdir 80 49,
    readlink 89 -, umask 95 166, gettimeofday 96 169, getrlimit 97 163, getrusage 98 165, sysinfo 99 179,
    times 100 153, getuid 102 174, getgid 104 176, geteuid 107 175, getegid 108 177, getppid 110 173,
    getgroups 115 158, getresuid 118 148, getresgid 120 150, sigaltstack 131 132, statfs 137 43, fstatfs 138 44,
    gettid 186 178, time 201 -, futex 202 98, sched_getaffinity 204 123, getdents64 217 61, restart_syscall 219 128,
    clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, exit_group 231 94, newfstatat 262 79,
    readlinkat 267 78, faccessat 269 48, pselect6 270 72, ppoll 271 73, set_robust_list 273 99, pipe2 293 59,
    getcpu 309 168, getrandom 318 278, statx 332 291, rseq 334 293, faccessat2 439 439"""
ARCHITECTURES = {"x86_64": (0, 0xC000003E, 56, 257, 72, 302), "aarch64": (1, 0xC00000B7, 220, 56, 25, 261)}
"""By machine: column of the table, its AUDIT_ARCH number, and the numbers of clone, openat, fcntl and prlimit64."""

libc = ctypes.CDLL(None, use_errno=True)


def call(function: Callable[..., int], *args: Any) -> int:
    """A C function's result; OSError where it is negative."""
    result = function(*(ctypes.c_long(value) if isinstance(value, int) else value for value in args))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def enter_namespaces(layers: list[str]) -> bool:
    """Whether the processes forked from now on have process, network, IPC and host name spaces of their own."""
    if "namespaces" in layers and sys.platform == "linux":
        with suppress(OSError):
            call(libc.unshare, ISOLATED if os.geteuid() == 0 else ISOLATED | USER)
            return True
    return False


def confine(layers: list[str], packages: str, cpu_seconds: int, memory_bytes: int) -> dict[str, Any]:
    """Gives up for good what the running process does not need; returns what took effect. `packages`: site-packages.

    Raises RuntimeError where root would run code that nothing keeps from starting processes.
    """
    linux = sys.platform == "linux"
    seccomp = "seccomp" in layers and linux and platform.machine() in ARCHITECTURES
    seccomp = seccomp and libc.prctl(GET_SECCOMP, 0, 0, 0, 0) == 0
    rules = landlock_rules(layers, Path(packages))
    if linux:
        call(libc.prctl, NO_NEW_PRIVS, 1, 0, 0, 0)
        call(libc.prctl, KEEPCAPS, 1, 0, 0, 0)
    if rules:
        restrict_files(rules)
    nobody = become_nobody()
    if os.geteuid() == 0 and not seccomp:
        raise RuntimeError("root cannot become `nobody` here and the kernel has no seccomp: run as an ordinary user")
    if linux:
        drop_capabilities(keep=DAC_READ_SEARCH if rules else 0)
        call(libc.prctl, PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # after the change of user, which resets both
        call(libc.prctl, DUMPABLE, 0, 0, 0, 0)
    wanted = {"CPU": cpu_seconds, "AS": memory_bytes, "FSIZE": 2**20, "CORE": 0, "NOFILE": 64}
    if not seccomp:
        wanted["NPROC"] = 0  # neither processes nor threads; with seccomp, threads are left
    limits = {name: value for name, value in wanted.items() if limit(name, value)}
    if seccomp:
        filter_system_calls()
    return {"nobody": nobody, "landlock": bool(rules), "seccomp": seccomp, "limits": limits}


def limit(name: str, value: int) -> bool:
    """Lowers a limit for good; False where the system has none of that name or refuses (memory, on macOS)."""
    which = getattr(resource, f"RLIMIT_{name}")
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(which, (value, value))
    except (ValueError, OSError):
        return False
    return True


def become_nobody() -> bool:
    """Root becomes `nobody`, where its container lets it."""
    if os.geteuid() == 0:
        with suppress(OSError):
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            return True
    return False


def drop_capabilities(keep: int) -> None:
    """All of them. `keep` is what nobody needs to import modules of a Python that lies in root's own home: reading
    past permissions, harmless beneath Landlock, which bounds what can be read at all."""
    header = struct.pack("=Ii", 0x20080522, 0)
    for mask in (keep, 0):
        with suppress(OSError):
            call(libc.capset, ctypes.c_char_p(header), ctypes.c_char_p(struct.pack("=6I", mask, mask, 0, 0, 0, 0)))
            return


def landlock_rules(layers: list[str], packages: Path) -> list[tuple[Path, int]]:
    """What may be read. Installed packages are left out by name: one of them holds HumanEval's solutions."""
    if "landlock" not in layers or sys.platform != "linux" or libc.syscall(LANDLOCK_CREATE, None, 0, 1) < 1:
        return []
    library = Path(os.__file__).parent
    readable = [entry for entry in library.iterdir() if entry.name not in ("site-packages", "dist-packages")]
    readable += library.parent.glob("lib*.so*")
    readable += [packages / name for name in THIRD_PARTY]
    readable += map(Path, ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo"))
    readable += map(Path, ("/dev/null", "/dev/urandom"))
    rules = [(path, READ_FILE | READ_DIR if path.is_dir() else READ_FILE) for path in readable if path.exists()]
    return rules + [(path, READ_DIR) for path in (library, packages, Path.cwd()) if path.exists()]


def restrict_files(rules: list[tuple[Path, int]]) -> None:
    """Landlock: no access to files is left but what `rules` grant at or beneath their paths."""
    version = min(call(libc.syscall, LANDLOCK_CREATE, None, 0, 1), max(ACCESS_BITS))
    handled = struct.pack("=Q", (1 << ACCESS_BITS[version]) - 1)
    ruleset = call(libc.syscall, LANDLOCK_CREATE, ctypes.c_char_p(handled), len(handled), 0)
    for path, rights in rules:
        beneath = os.open(path, os.O_PATH)
        call(libc.syscall, LANDLOCK_ADD, ruleset, 1, ctypes.c_char_p(struct.pack("=Qi", rights, beneath)), 0)
        os.close(beneath)
    call(libc.syscall, LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


def filter_system_calls() -> None:
    """Seccomp: the calls of the table, threads but no processes, files opened for reading alone; ENOSYS else."""
    program = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions())
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    call(libc.prctl, SET_SECCOMP, 2, ctypes.c_char_p(header), 0, 0)


def instructions() -> Iterator[tuple[int, int, int, int]]:
    """The filter in classic BPF: (operation, jump if true, jump if false, constant) each."""
    column, architecture, clone, openat, fcntl, prlimit = ARCHITECTURES[platform.machine()]
    load, equal, any_bit, answer = 0x20, 0x15, 0x45, 0x06
    allow, refuse, kill = 0x7FFF0000, 0x00050000 | 38, 0x80000000  # 38: ENOSYS
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    thread = 0x00010000  # CLONE_THREAD
    # struct seccomp_data: the call's number at byte 0, the architecture at 4, argument i's low half at 16 + 8 i
    yield from [(load, 0, 0, 4), (equal, 1, 0, architecture), (answer, 0, 0, kill), (load, 0, 0, 0)]
    owner = 0x3F8  # set in the commands that have signals sent (F_SETOWN, F_SETSIG ...), in no other that is needed
    for number, argument, bits, on_any, on_none in (
        (clone, 0, thread, allow, refuse),
        (fcntl, 1, owner, refuse, allow),
        (openat, 2, writing, refuse, allow),
        (prlimit, 0, 0xFFFFFFFF, refuse, allow),  # of the process itself alone
    ):
        yield from [(equal, 0, 4, number), (load, 0, 0, 16 + 8 * argument), (any_bit, 0, 1, bits)]
        yield from [(answer, 0, 0, on_any), (answer, 0, 0, on_none)]
    for entry in SYSTEM_CALLS.split(","):
        if (known := entry.split()[1 + column]) != "-":
            yield from [(equal, 0, 1, int(known)), (answer, 0, 0, allow)]
    yield answer, 0, 0, refuse
