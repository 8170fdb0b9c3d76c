"""Many clients, and a server that dies in the middle."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

CLIENTS, IMAGES, SIZE, BATCH = 8, 2000, 64, 5
NUMBERS = [7919 * row % (1 << 24) for row in range(1, IMAGES + 1)]  # a prime: all differ


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reward")
def test_no_score_is_lost_doubled_or_wrong_while_the_server_is_killed_and_comes_back(spawn, remote, painted, file):
    """Each image is the picture of its own number, and each of its own colour: a score is right for one image only."""
    process, url = spawn(f"{file}:Number", "--port", 0)
    scored = threading.Semaphore(0)
    share = IMAGES // CLIENTS

    def client(index):
        score = remote(url, batch=BATCH, parallel=2, retries=12)
        found = []
        for first in range(index * share, (index + 1) * share, 2 * BATCH):
            found += score(painted(NUMBERS[first : first + 2 * BATCH], SIZE)).values.tolist()
            scored.release(2 * BATCH)
        return found

    with ThreadPoolExecutor(CLIENTS) as pool:
        running = [pool.submit(client, index) for index in range(CLIENTS)]
        for _ in range(IMAGES // 4):
            assert scored.acquire(timeout=60)
        process.send_signal(signal.SIGKILL)
        process.wait()
        done = sum(future.done() for future in running)
        _, again = spawn(f"{file}:Number", "--port", url.rpartition(":")[2])
        found = [value for future in running for value in future.result(120)]
    assert (done, again) == (0, url)
    assert found == NUMBERS
