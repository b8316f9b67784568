"""A subscriber on Google's Python client that applies each message in a transaction of its own.

With DEDUPLICATE set, the transaction also inserts the event's id into a table, and an event whose id
is there has no further effect.
"""

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.scheduler import ThreadScheduler

# As many connections as each of the compared consumers has.
WORKERS = 4
DEDUPLICATES = "DEDUPLICATE" in os.environ
SEEN = "INSERT INTO bench_seen VALUES (%s) ON CONFLICT DO NOTHING"
# The newest state of each key, and the number of applied events.
EFFECT = """
    INSERT INTO bench_state AS s VALUES (%s, %s, 1, %s)
    ON CONFLICT (id) DO UPDATE
       SET version = excluded.version, events = s.events + 1, text = excluded.text
"""
session = threading.local()


def apply(message):
    if not hasattr(session, "connection"):
        session.connection = psycopg.connect(os.environ["DATABASE_URL"])
    attributes = message.attributes
    with session.connection.transaction():
        if DEDUPLICATES:
            seen = session.connection.execute(SEEN, (attributes["event_id"],))
            if seen.rowcount == 0:
                return
        text = json.loads(message.data)["text"]
        effect = (attributes["aggregate_id"], int(attributes["version"]), text)
        session.connection.execute(EFFECT, effect)


def receive(message):
    try:
        apply(message)
    except psycopg.Error as error:
        print(error)
        message.nack()
    else:
        message.ack()


def main():
    scheduler = ThreadScheduler(ThreadPoolExecutor(WORKERS))
    subscriber = pubsub_v1.SubscriberClient()
    receiving = subscriber.subscribe(os.environ["SUBSCRIPTION"], receive, scheduler=scheduler)
    signal.signal(signal.SIGTERM, lambda *_: receiving.cancel())
    receiving.result()


if __name__ == "__main__":
    main()
