"""The native plan runner: every launch of a plan in one call, on as many threads as call it.

``int64_t k3_run(int64_t *table, int64_t num_launches, int64_t thread_id, int64_t num_threads, int64_t *sync)``

Each table row is eight words:

====  =======================================================================================
0     the kernel's address
1     the address of its argument words
2     programs of the grid
3, 4  gx, gy
5     cursor: programs taken so far; 0 at start and 0 again after the run
6     grain: programs that a thread takes at a time (at least 1)
7     programs finished so far; 0 at start and 0 again after the run
====  =======================================================================================

A launch is over when its programs are, whoever ran them: a thread that the machine does not let run holds nobody
up, unless in the middle of a program. Only the end of the run waits for every thread, to put the counters back.

``sync`` is 16 words, zeroed once and used for any number of calls: word 0 counts arrivals at the end of the run,
word 8 (another cache line) counts runs. Waiting threads spin, then give their core away with sched_yield between
looks. All threads of a run must pass the same table and num_threads.
"""

from __future__ import annotations

from k3compiler.targets.cpu.state import attributes

RUNNER_SYMBOL = "k3_run"
ROW_WORDS = 8
SYNC_WORDS = 16
SPINS_BEFORE_YIELD = 1000
_SCHED_YIELD = 24


def runner_text(level: str) -> str:
    """The runner as MLIR text (LLVM dialect)."""
    arguments = "%table: !llvm.ptr, %launches: i64, %thread: i64, %threads: i64, %sync: !llvm.ptr"
    system_call = 'llvm.inline_asm has_side_effects "syscall", "={ax},{ax},~{rcx},~{r11},~{memory}"'
    pause = 'llvm.inline_asm has_side_effects "pause", "~{memory}" : () -> ()'
    return f"""
llvm.func @{RUNNER_SYMBOL}({arguments}) -> i64 attributes {attributes(level)} {{
  %c0 = llvm.mlir.constant(0 : i64) : i64
  %c1 = llvm.mlir.constant(1 : i64) : i64
  %row_words = llvm.mlir.constant({ROW_WORDS} : i64) : i64
  %spin_limit = llvm.mlir.constant({SPINS_BEFORE_YIELD} : i64) : i64
  %yield_call = llvm.mlir.constant({_SCHED_YIELD} : i64) : i64
  %generation_at = llvm.getelementptr %sync[8] : (!llvm.ptr) -> !llvm.ptr, i64
  %last_thread = llvm.sub %threads, %c1 : i64
  %is_alone = llvm.icmp "sle" %threads, %c1 : i64
  llvm.br ^launch(%c0 : i64)
^launch(%i: i64):
  %more = llvm.icmp "slt" %i, %launches : i64
  llvm.cond_br %more, ^open, ^done
^open:
  %first = llvm.mul %i, %row_words : i64
  %row = llvm.getelementptr %table[%first] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %args_at = llvm.getelementptr %row[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %count_at = llvm.getelementptr %row[2] : (!llvm.ptr) -> !llvm.ptr, i64
  %gx_at = llvm.getelementptr %row[3] : (!llvm.ptr) -> !llvm.ptr, i64
  %gy_at = llvm.getelementptr %row[4] : (!llvm.ptr) -> !llvm.ptr, i64
  %cursor_at = llvm.getelementptr %row[5] : (!llvm.ptr) -> !llvm.ptr, i64
  %grain_at = llvm.getelementptr %row[6] : (!llvm.ptr) -> !llvm.ptr, i64
  %finished_at = llvm.getelementptr %row[7] : (!llvm.ptr) -> !llvm.ptr, i64
  %kernel = llvm.load %row : !llvm.ptr -> !llvm.ptr
  %args = llvm.load %args_at : !llvm.ptr -> !llvm.ptr
  %count = llvm.load %count_at : !llvm.ptr -> i64
  %gx = llvm.load %gx_at : !llvm.ptr -> i64
  %gy = llvm.load %gy_at : !llvm.ptr -> i64
  %given = llvm.load %grain_at : !llvm.ptr -> i64
  %grain = llvm.intr.smax(%given, %c1) : (i64, i64) -> i64
  llvm.cond_br %is_alone, ^whole, ^take
^whole:
  %any = llvm.icmp "sgt" %count, %c0 : i64
  llvm.cond_br %any, ^run_whole, ^next
^run_whole:
  llvm.call %kernel(%args, %c0, %count, %gx, %gy) : !llvm.ptr, (!llvm.ptr, i64, i64, i64, i64) -> ()
  llvm.br ^next
^take:
  %from = llvm.atomicrmw add %cursor_at, %grain monotonic : !llvm.ptr, i64
  %has_work = llvm.icmp "slt" %from, %count : i64
  llvm.cond_br %has_work, ^run, ^wait(%c0 : i64)
^run:
  %beyond = llvm.add %from, %grain : i64
  %to = llvm.intr.smin(%beyond, %count) : (i64, i64) -> i64
  llvm.call %kernel(%args, %from, %to, %gx, %gy) : !llvm.ptr, (!llvm.ptr, i64, i64, i64, i64) -> ()
  %taken = llvm.sub %to, %from : i64
  %before = llvm.atomicrmw add %finished_at, %taken acq_rel : !llvm.ptr, i64
  llvm.br ^take
^wait(%spins: i64):
  %finished = llvm.load %finished_at atomic acquire {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %is_over = llvm.icmp "sge" %finished, %count : i64
  llvm.cond_br %is_over, ^next, ^spin
^spin:
  {pause}
  %again = llvm.add %spins, %c1 : i64
  %is_long = llvm.icmp "sgt" %again, %spin_limit : i64
  llvm.cond_br %is_long, ^give_way, ^wait(%again : i64)
^give_way:
  %ignored = {system_call} %yield_call : (i64) -> i64
  llvm.br ^wait(%again : i64)
^next:
  %following_launch = llvm.add %i, %c1 : i64
  llvm.br ^launch(%following_launch : i64)
^done:
  llvm.cond_br %is_alone, ^end, ^arrive
^arrive:
  %generation = llvm.load %generation_at atomic monotonic {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %arrived = llvm.atomicrmw add %sync, %c1 acq_rel : !llvm.ptr, i64
  %is_last = llvm.icmp "eq" %arrived, %last_thread : i64
  llvm.cond_br %is_last, ^reset(%c0 : i64), ^hold(%c0 : i64)
^reset(%r: i64):
  %has_row = llvm.icmp "slt" %r, %launches : i64
  llvm.cond_br %has_row, ^reset_row, ^release
^reset_row:
  %first_word = llvm.mul %r, %row_words : i64
  %old_row = llvm.getelementptr %table[%first_word] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %old_cursor = llvm.getelementptr %old_row[5] : (!llvm.ptr) -> !llvm.ptr, i64
  %old_finished = llvm.getelementptr %old_row[7] : (!llvm.ptr) -> !llvm.ptr, i64
  llvm.store %c0, %old_cursor : i64, !llvm.ptr
  llvm.store %c0, %old_finished : i64, !llvm.ptr
  %next_row = llvm.add %r, %c1 : i64
  llvm.br ^reset(%next_row : i64)
^release:
  llvm.store %c0, %sync atomic monotonic {{alignment = 8 : i64}} : i64, !llvm.ptr
  %following = llvm.add %generation, %c1 : i64
  llvm.store %following, %generation_at atomic release {{alignment = 8 : i64}} : i64, !llvm.ptr
  llvm.br ^end
^hold(%held: i64):
  %now = llvm.load %generation_at atomic acquire {{alignment = 8 : i64}} : !llvm.ptr -> i64
  %is_free = llvm.icmp "ne" %now, %generation : i64
  llvm.cond_br %is_free, ^end, ^hold_spin
^hold_spin:
  {pause}
  %longer = llvm.add %held, %c1 : i64
  %is_long_hold = llvm.icmp "sgt" %longer, %spin_limit : i64
  llvm.cond_br %is_long_hold, ^hold_give_way, ^hold(%longer : i64)
^hold_give_way:
  %ignored_too = {system_call} %yield_call : (i64) -> i64
  llvm.br ^hold(%longer : i64)
^end:
  llvm.return %c0 : i64
}}
"""
