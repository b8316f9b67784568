"""The official Python client against the emulator.

Usage: PUBSUB_EMULATOR_HOST=host:port python3 python_client.py
Prints "ok" as its last line and exits with 0 if all checks pass.
"""

import threading
import uuid

from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.pubsub_v1 import PublisherClient, types

PROJECT = "python"
COUNT = 100
DEADLINE = 60


def main():
    options = pubsub_v1.types.PublisherOptions(enable_message_ordering=True)
    publisher = pubsub_v1.PublisherClient(publisher_options=options)
    subscriber = pubsub_v1.SubscriberClient()
    topic = publisher.topic_path(PROJECT, f"orders-{uuid.uuid4().hex}")
    subscription = subscriber.subscription_path(PROJECT, f"all-{uuid.uuid4().hex}")

    publisher.create_topic(name=topic)
    assert publisher.get_topic(topic=topic).name == topic
    listed = [its.name for its in publisher.list_topics(project=f"projects/{PROJECT}")]
    assert topic in listed, listed
    expect(exceptions.AlreadyExists, lambda: publisher.create_topic(name=topic))

    subscriber.create_subscription(
        request={"name": subscription, "topic": topic, "enable_message_ordering": True}
    )
    assert list(publisher.list_topic_subscriptions(topic=topic)) == [subscription]

    pull_once(publisher, subscriber, topic, subscription)
    stream_in_order(publisher, subscriber, topic, subscription)
    limits(publisher, topic)

    subscriber.delete_subscription(subscription=subscription)
    publisher.delete_topic(topic=topic)
    expect(exceptions.NotFound, lambda: publisher.get_topic(topic=topic))
    subscriber.close()
    print("ok")


def pull_once(publisher, subscriber, topic, subscription):
    first = publisher.publish(topic, b"one", kind="pull").result(timeout=DEADLINE)
    request = {"subscription": subscription, "max_messages": 10}
    received = subscriber.pull(request=request, timeout=DEADLINE).received_messages
    assert [its.message.data for its in received] == [b"one"]
    message = received[0].message
    assert message.message_id == first, (message.message_id, first)
    assert dict(message.attributes) == {"kind": "pull"}
    assert message.publish_time.timestamp() > 1_600_000_000

    # A nacked message is redelivered. An acknowledged one is not.
    ids = [received[0].ack_id]
    subscriber.modify_ack_deadline(
        request={"subscription": subscription, "ack_ids": ids, "ack_deadline_seconds": 0}
    )
    again = subscriber.pull(request=request, timeout=DEADLINE).received_messages
    assert again[0].delivery_attempt == 0, "counted only with a dead-letter policy"
    subscriber.acknowledge(
        request={"subscription": subscription, "ack_ids": [again[0].ack_id]}
    )


def stream_in_order(publisher, subscriber, topic, subscription):
    keys = ["a", "b", "c"]
    received = {key: [] for key in keys}
    nacked = []
    done = threading.Event()

    def callback(message):
        number = int(message.data)
        if message.ordering_key == "b" and number == 10 and not nacked:
            nacked.append(number)
            message.nack()
            return
        received[message.ordering_key].append(number)
        message.ack()
        if all(set(numbers) == set(range(COUNT)) for numbers in received.values()):
            done.set()

    flow = pubsub_v1.types.FlowControl(max_messages=20)
    future = subscriber.subscribe(subscription, callback=callback, flow_control=flow)
    replies = [
        publisher.publish(topic, str(number).encode(), ordering_key=key)
        for number in range(COUNT)
        for key in keys
    ]
    ids = [int(reply.result(timeout=DEADLINE)) for reply in replies]
    assert len(set(ids)) == len(ids)
    if not done.wait(DEADLINE):
        raise AssertionError({key: len(set(numbers)) for key, numbers in received.items()})
    future.cancel()
    future.result(timeout=DEADLINE)
    for key in ("a", "c"):
        assert received[key] == list(range(COUNT)), (key, received[key])
    assert nacked == [10]


def limits(publisher, topic):
    message = types.PubsubMessage
    # The generated client below the batching client sends each request unchanged.
    api = PublisherClient(transport=publisher.transport)

    def refused(*messages):
        request = types.PublishRequest(topic=topic, messages=list(messages))
        expect(exceptions.InvalidArgument, lambda: api.publish(request=request))

    refused(message(data=b"x", ordering_key="a"), message(data=b"x", ordering_key="b"))
    refused(message(ordering_key="only a key"))
    refused(message(data=b"x", attributes={"k": "v" * 1025}))
    refused()


def expect(error, call):
    try:
        call()
    except error:
        return
    raise AssertionError(f"{error.__name__} was expected")


if __name__ == "__main__":
    main()
