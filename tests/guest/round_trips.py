"""``round_trips.py SECONDS EVERY_MS``: rank 0 sends rank 1 a datagram every so many ms, and prints for each its number,
when it was sent since the start, and its round trip, in ns; rank 1 sends all back. What is missing was lost."""

import os
import socket
import sys
import threading
import time

PORT = 7000


def echo(seconds: float) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.bind(("0.0.0.0", PORT))
        end.settimeout(seconds + 2)
        while True:
            try:
                data, sender = end.recvfrom(64)
            except TimeoutError:
                return
            if data == b"end":
                return
            end.sendto(data, sender)


def measure(seconds: float, every_s: float) -> None:
    count, sent, back = round(seconds / every_s), dict[int, int](), dict[int, int]()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.bind(("0.0.0.0", PORT))
        end.settimeout(1.0)

        def listen() -> None:
            while len(back) < count:
                try:
                    data = end.recv(64)
                except TimeoutError:
                    if len(sent) == count:
                        return
                    continue
                back.setdefault(int(data), time.monotonic_ns())

        listener = threading.Thread(target=listen)
        listener.start()
        begun = time.monotonic_ns()
        for number in range(count):
            time.sleep(max(0.0, (begun + (number + 0.5) * every_s * 1e9 - time.monotonic_ns()) / 1e9))
            sent[number] = time.monotonic_ns()
            end.sendto(str(number).encode(), ("g1", PORT))
        listener.join()
        end.sendto(b"end", ("g1", PORT))
    for number, at in sent.items():
        print(number, at - begun, back.get(number, 0) - at if number in back else -1)


if __name__ == "__main__":
    seconds = float(sys.argv[1])
    if os.environ["RANK"] == "0":
        measure(seconds, float(sys.argv[2]) / 1e3)
    else:
        echo(seconds)
