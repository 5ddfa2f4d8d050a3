"""What a step's loops tell about more threads. A loop is a dict of one line that `sherd_peers loops` writes: its name,
begin and end, and for each task [taken, begin, end, needs, thread], all times in microseconds."""
import collections
import heapq
import json
import pathlib
import statistics

TAKEN, BEGIN, END, NEEDS, THREAD = range(5)


def read(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def work_of(loop):
    return sum(task[END] - task[BEGIN] for task in loop["tasks"])


def outside_of_loops(loops, step):
    """Microseconds of a step of `step` microseconds in which no loop ran: one thread works, or waits for input."""
    return step - sum(loop["end"] - loop["begin"] for loop in loops)


def waits_of(loop, threads):
    """Where the time of all threads in a loop went, in microseconds. The parts add up to threads x its duration.

    work   in tasks
    wake   until a thread took its first task
    order  until the tasks were done that a task needs
    hand   between tasks
    few    of threads that got no task
    end    from a thread's last task to the loop's end
    """
    duration = loop["end"] - loop["begin"]
    parts = dict.fromkeys(("work", "wake", "order", "hand", "few", "end"), 0.0)
    of_thread = collections.defaultdict(list)
    for task in loop["tasks"]:
        of_thread[task[THREAD]].append(task)
    for tasks in of_thread.values():
        tasks.sort()
        parts["work"] += sum(task[END] - task[BEGIN] for task in tasks)
        parts["order"] += sum(task[BEGIN] - task[TAKEN] for task in tasks)
        parts["wake"] += tasks[0][TAKEN] - loop["begin"]
        parts["end"] += loop["end"] - tasks[-1][END]
        parts["hand"] += sum(after[TAKEN] - before[END] for before, after in zip(tasks, tasks[1:]))
    parts["few"] = (threads - len(of_thread)) * duration
    return parts


def costs_of_meeting(loops, threads):
    """Medians over loops in which all threads had tasks: microseconds until the last thread has its first task, and
    from the last task's end to the loop's end."""
    wakes, ends = [], []
    for loop in loops:
        first, last = {}, 0.0
        for task in loop["tasks"]:
            first[task[THREAD]] = min(first.get(task[THREAD], task[TAKEN]), task[TAKEN])
            last = max(last, task[END])
        if len(first) == threads:
            wakes.append(max(first.values()) - loop["begin"])
            ends.append(loop["end"] - last)
    return (statistics.median(wakes), statistics.median(ends)) if wakes else (0.0, 0.0)


def duration_on(loop, threads, wake=0.0, end=0.0, slower=1.0):
    """Microseconds of a loop on `threads` threads, from its tasks' durations one by one: tasks are taken in order, and
    a task that needs others waits for them with its thread. `slower` multiplies durations."""
    tasks = loop["tasks"]
    if threads == 1 or len(tasks) <= 1:
        return work_of(loop) * slower
    free = [0.0] + [wake] * (threads - 1)
    heapq.heapify(free)
    done = [0.0]  # done[i]: when all tasks below i are
    for task in tasks:
        begin = max(heapq.heappop(free), done[task[NEEDS]])
        finish = begin + (task[END] - task[BEGIN]) * slower
        done.append(max(done[-1], finish))
        heapq.heappush(free, finish)
    return done[-1] + end


def slower_by_bandwidth(loops, bytes_moved, threads, bandwidth):
    """How many times longer a task of each kernel takes on `threads` threads that share `bandwidth` bytes per
    microsecond of memory. `bytes_moved`: by a kernel's loops in a step; each operand counts once. A kernel that has
    none is as fast as alone."""
    times = collections.Counter()
    for loop in loops:
        times[loop["name"]] += work_of(loop)
    return lambda name: max(1.0, bytes_moved.get(name, 0) / times[name] * threads / bandwidth) if times[name] else 1.0


def slower_at_once(loops, others):
    """How many times longer a task of each kernel takes where several processes run the same step at once. `others`:
    the loops of each of them; `loops`: those of one that ran alone."""
    alone, together = collections.Counter(), collections.Counter()
    for loop in loops:
        alone[loop["name"]] += work_of(loop)
    for other in others:
        for loop in other:
            together[loop["name"]] += work_of(loop) / len(others)
    return lambda name: together[name] / alone[name] if alone[name] else 1.0


def step_on(loops, step, threads, wake=0.0, end=0.0, slower=lambda name: 1.0):
    """Microseconds of a step that took `step` on one thread, and what caps it: microseconds that no loop was in, and
    those that loops took beyond their work divided by the threads, by name."""
    alone = outside_of_loops(loops, step)
    beyond = collections.Counter()
    total = alone
    for loop in loops:
        duration = duration_on(loop, threads, wake, end, slower(loop["name"]))
        total += duration
        beyond[loop["name"]] += duration - work_of(loop) / threads
    return total, alone, beyond


def of_layers(one, two, layers):
    """The replay (step_on) of a model of `layers` layers, from those of its first layer and of its first two."""
    more = layers - 2
    beyond = collections.Counter({kernel: time + more * (time - one[2][kernel]) for kernel, time in two[2].items()})
    return two[0] + more * (two[0] - one[0]), two[1] + more * (two[1] - one[1]), beyond
