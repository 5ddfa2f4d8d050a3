"""python3 tests/bench/threads/replay_test.py"""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from replay import (costs_of_meeting, duration_on, of_layers, outside_of_loops, slower_at_once, slower_by_bandwidth,  # noqa: E402
                    step_on, waits_of)


def loop(*tasks, name="kernel", begin=0.0, end=None):
    """Tasks as (duration, needs), one after another on one thread."""
    rows, now = [], begin
    for duration, needs in tasks:
        rows.append([now, now, now + duration, needs, 0])
        now += duration
    return {"name": name, "begin": begin, "end": now if end is None else end, "tasks": rows}


class Replay(unittest.TestCase):
    def test_one_thread_takes_as_long_as_the_work(self):
        self.assertEqual(duration_on(loop((3, 0), (4, 0)), 1, wake=9, end=9), 7)

    def test_equal_tasks_divide_among_threads_that_divide_their_number(self):
        eight = loop(*[(2, 0)] * 8)
        self.assertEqual([duration_on(eight, threads) for threads in (2, 4, 8, 16)], [8, 4, 2, 2])

    def test_tasks_that_threads_do_not_divide_leave_threads_idle(self):
        self.assertEqual(duration_on(loop(*[(2, 0)] * 9), 8), 4)

    def test_tasks_are_taken_in_order(self):
        self.assertEqual(duration_on(loop((1, 0), (1, 0), (10, 0)), 2), 11)
        self.assertEqual(duration_on(loop((10, 0), (1, 0), (1, 0)), 2), 10)

    def test_a_task_waits_for_those_it_needs_and_its_thread_with_it(self):
        self.assertEqual(duration_on(loop((5, 0), (1, 0), (1, 1), (10, 0)), 2), 15)
        self.assertEqual(duration_on(loop((5, 0), (1, 1)), 8), 6)

    def test_a_helper_begins_when_it_is_awake_and_a_loop_ends_with_a_meeting(self):
        self.assertEqual(duration_on(loop((5, 0), (5, 0)), 2, wake=3, end=1), 9)
        self.assertEqual(duration_on(loop((5, 0)), 2, wake=3, end=1), 5)  # no other thread is asked

    def test_slower_tasks_take_longer(self):
        self.assertEqual(duration_on(loop((5, 0), (5, 0)), 2, slower=2.0), 10)

    def test_threads_share_the_bandwidth_of_memory(self):
        loops = [loop((2, 0), (2, 0)), loop((6, 0), name="other")]  # 1,000 bytes a microsecond
        slower = {threads: slower_by_bandwidth(loops, {"kernel": 4000}, threads, 8000.0) for threads in (1, 8, 32)}
        self.assertEqual([slower[threads]("kernel") for threads in (1, 8, 32)], [1, 1, 4])
        self.assertEqual(slower[32]("other"), 1)

    def test_processes_at_once_say_how_much_cores_slow_each_other(self):
        alone = [loop((2, 0)), loop((2, 0)), loop((6, 0), name="other")]
        slower = slower_at_once(alone, [[loop((2, 0)), loop((4, 0))], [loop((2, 0)), loop((2, 0)), loop((9, 0), name="other")]])
        self.assertEqual(slower("kernel"), 10 / 2 / 4)
        self.assertEqual(slower("other"), 9 / 2 / 6)
        self.assertEqual(slower("never run"), 1)

    def test_a_step_is_its_loops_and_the_time_outside_of_them(self):
        loops = [loop((4, 0), (4, 0), begin=10.0), loop((6, 0), begin=30.0, name="alone")]
        self.assertEqual(outside_of_loops(loops, 100.0), 86)
        total, alone, beyond = step_on(loops, 100.0, 2)
        self.assertEqual((total, alone), (96, 86))
        self.assertEqual(beyond["kernel"], 0)
        self.assertEqual(beyond["alone"], 3)

    def test_two_layers_and_one_say_what_many_take(self):
        def step(layers):
            return step_on([loop((2, 0), (2, 0))] * layers + [loop((3, 0), name="head")], 4 * layers + 4, 2)

        self.assertEqual(of_layers(step(1), step(2), 16), step(16))

    def test_waits_add_up_to_the_time_of_all_threads(self):
        one = {"name": "kernel", "begin": 0.0, "end": 12.0, "tasks": [
            [1.0, 1.0, 5.0, 0, 0], [3.0, 5.0, 9.0, 1, 1], [6.0, 6.0, 11.0, 0, 0]]}
        parts = waits_of(one, 3)
        self.assertEqual(parts, {"work": 13.0, "wake": 4.0, "order": 2.0, "hand": 1.0, "few": 12.0, "end": 4.0})
        self.assertEqual(sum(parts.values()), 36.0)

    def test_costs_of_a_meeting_are_medians_of_loops_that_all_threads_had_a_part_in(self):
        def met(wake, end):
            return {"name": "k", "begin": 0.0, "end": 10.0 + end,
                    "tasks": [[0.0, 0.0, 10.0, 0, 0], [wake, wake, 9.0, 0, 1]]}
        alone = loop((50, 0), end=90.0)
        self.assertEqual(costs_of_meeting([met(1, 5), met(2, 4), met(3, 3), alone], 2), (2, 4))


if __name__ == "__main__":
    unittest.main()
