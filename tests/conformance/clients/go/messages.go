package main

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2"
	pb "cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
)

// publish publishes one message and waits for its id.
func (p *place) publish(ctx context.Context, key, data string) (string, error) {
	publisher := p.client.Publisher(p.topic)
	defer publisher.Stop()
	publisher.EnableMessageOrdering = true
	return publisher.Publish(ctx, &pubsub.Message{Data: []byte(data), OrderingKey: key}).Get(ctx)
}

// receive passes messages to `each` until it returns true or an error.
func (p *place) receive(
	ctx context.Context,
	settings func(*pubsub.ReceiveSettings),
	each func(*pubsub.Message) (bool, error),
) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	subscriber := p.client.Subscriber(p.subscription)
	if settings != nil {
		settings(&subscriber.ReceiveSettings)
	}
	done := fmt.Errorf("done")
	var mutex sync.Mutex
	err := subscriber.Receive(ctx, func(_ context.Context, message *pubsub.Message) {
		mutex.Lock()
		defer mutex.Unlock()
		finished, err := each(message)
		if err != nil {
			stop(err)
		} else if finished {
			stop(done)
		}
	})
	if err != nil {
		return err
	}
	if cause := context.Cause(ctx); cause != done {
		return cause
	}
	return nil
}

func arriveAsPublished(ctx context.Context, p *place) error {
	publisher := p.client.Publisher(p.topic)
	defer publisher.Stop()
	publisher.EnableMessageOrdering = true
	attributes := map[string]string{"event_type": "OrderPaid", "ümlaut": "ß", "empty": ""}
	sent := &pubsub.Message{Data: []byte{0, 1, 255}, Attributes: attributes, OrderingKey: "A 17/ü"}
	id, err := publisher.Publish(ctx, sent).Get(ctx)
	if err != nil {
		return err
	}
	return p.receive(ctx, nil, func(got *pubsub.Message) (bool, error) {
		got.Ack()
		same := got.ID == id && string(got.Data) == "\x00\x01\xff" && got.OrderingKey == "A 17/ü"
		if !same || !reflect.DeepEqual(got.Attributes, attributes) || got.PublishTime.Year() < 2020 {
			return false, fmt.Errorf("another message arrived: %+v", got)
		}
		return true, nil
	})
}

func idle(ctx context.Context, p *place) error {
	published := make(chan error, 1)
	time.AfterFunc(idleTime, func() {
		_, err := p.publish(ctx, "k", "late")
		published <- err
	})
	err := p.receive(ctx, nil, func(got *pubsub.Message) (bool, error) {
		got.Ack()
		return true, nil
	})
	if err != nil {
		return err
	}
	return <-published
}

func redelivered(ctx context.Context, p *place) error {
	if _, err := p.publish(ctx, "", "again"); err != nil {
		return err
	}
	deliveries := 0
	return p.receive(ctx, nil, func(got *pubsub.Message) (bool, error) {
		deliveries++
		if deliveries < 3 {
			got.Nack()
			return false, nil
		}
		got.Ack()
		return true, nil
	})
}

func inOrder(ctx context.Context, p *place) error {
	const keys, each = 5, 100
	publisher := p.client.Publisher(p.topic)
	defer publisher.Stop()
	publisher.EnableMessageOrdering = true
	var results []*pubsub.PublishResult
	for number := range each {
		for key := range keys {
			message := &pubsub.Message{Data: []byte(strconv.Itoa(number)), OrderingKey: fmt.Sprintf("key-%d", key)}
			results = append(results, publisher.Publish(ctx, message))
		}
	}
	ids := map[string]bool{}
	for _, result := range results {
		id, err := result.Get(ctx)
		if err != nil {
			return err
		}
		ids[id] = true
	}
	if len(ids) != keys*each {
		return fmt.Errorf("%d different ids of %d messages", len(ids), keys*each)
	}
	next := map[string]int{}
	count, rejected := 0, false
	return p.receive(ctx, nil, func(got *pubsub.Message) (bool, error) {
		number, _ := strconv.Atoi(string(got.Data))
		// A rejected message is redelivered, and all later ones of its key behind it.
		if got.OrderingKey == "key-1" && number == 10 && !rejected {
			rejected = true
			got.Nack()
			return false, nil
		}
		if got.OrderingKey == "key-1" && rejected && number > next["key-1"] {
			got.Nack()
			return false, nil
		}
		got.Ack()
		if number != next[got.OrderingKey] {
			return false, fmt.Errorf("%s: %d instead of %d", got.OrderingKey, number, next[got.OrderingKey])
		}
		next[got.OrderingKey]++
		count++
		return count == keys*each, nil
	})
}

func resumed(ctx context.Context, p *place) error {
	publisher := p.client.Publisher(p.topic)
	defer publisher.Stop()
	publisher.EnableMessageOrdering = true
	send := func(data, attribute string) error {
		message := &pubsub.Message{Data: []byte(data), OrderingKey: "k", Attributes: map[string]string{"a": attribute}}
		_, err := publisher.Publish(ctx, message).Get(ctx)
		return err
	}
	if err := send("1", strings.Repeat("x", 1025)); err == nil {
		return fmt.Errorf("an attribute of 1,025 bytes was accepted")
	}
	if err := send("2", ""); err == nil {
		return fmt.Errorf("the key was not paused")
	}
	publisher.ResumePublish("k")
	if err := send("3", ""); err != nil {
		return err
	}
	return p.receive(ctx, nil, func(got *pubsub.Message) (bool, error) {
		got.Ack()
		if string(got.Data) != "3" {
			return false, fmt.Errorf("%s arrived", got.Data)
		}
		return true, nil
	})
}

func boundedSubscriber(ctx context.Context, p *place) error {
	const bound, count = 3, 30
	for number := range count {
		if _, err := p.publish(ctx, "", strconv.Itoa(number)); err != nil {
			return err
		}
	}
	settings := func(settings *pubsub.ReceiveSettings) { settings.MaxOutstandingMessages = bound }
	var held []*pubsub.Message
	received := 0
	return p.receive(ctx, settings, func(got *pubsub.Message) (bool, error) {
		received++
		held = append(held, got)
		if len(held) > bound {
			return false, fmt.Errorf("%d messages are unacknowledged", len(held))
		}
		// Acknowledged only when the bound is reached, so that more would arrive without a bound.
		if len(held) == bound {
			for _, message := range held {
				message.Ack()
			}
			held = nil
		}
		return received == count, nil
	})
}

func boundedPublisher(ctx context.Context, p *place) error {
	publisher := p.client.Publisher(p.topic)
	publisher.PublishSettings.DelayThreshold = time.Hour
	publisher.PublishSettings.FlowControlSettings = pubsub.FlowControlSettings{
		MaxOutstandingMessages: 2,
		LimitExceededBehavior:  pubsub.FlowControlSignalError,
	}
	send := func() *pubsub.PublishResult { return publisher.Publish(ctx, &pubsub.Message{Data: []byte("x")}) }
	first, second, third := send(), send(), send()
	if _, err := third.Get(ctx); err != pubsub.ErrFlowControllerMaxOutstandingMessages {
		return fmt.Errorf("the third message: %v", err)
	}
	publisher.Stop()
	for _, result := range []*pubsub.PublishResult{first, second} {
		if _, err := result.Get(ctx); err != nil {
			return err
		}
	}
	return nil
}

func exactlyOnce(ctx context.Context, p *place) error {
	change := func(subscription *pb.Subscription) { subscription.EnableExactlyOnceDelivery = true }
	once, err := newPlace(ctx, p.client, "exactly-once", change)
	if err != nil {
		return err
	}
	for number := range 20 {
		if _, err := once.publish(ctx, "k", strconv.Itoa(number)); err != nil {
			return err
		}
	}
	var results []*pubsub.AckResult
	err = once.receive(ctx, nil, func(got *pubsub.Message) (bool, error) {
		if string(got.Data) != strconv.Itoa(len(results)) {
			return false, fmt.Errorf("%s arrived after %d messages", got.Data, len(results))
		}
		results = append(results, got.AckWithResult())
		return len(results) == 20, nil
	})
	if err != nil {
		return err
	}
	for number, result := range results {
		if status, err := result.Get(ctx); status != pubsub.AcknowledgeStatusSuccess {
			return fmt.Errorf("acknowledgement %d: %v: %v", number, status, err)
		}
	}
	return nil
}

func compressed(ctx context.Context, p *place) error {
	publisher := p.client.Publisher(p.topic)
	defer publisher.Stop()
	publisher.PublishSettings.EnableCompression = true
	publisher.PublishSettings.CompressionBytesThreshold = 0
	text := strings.Repeat("the same again ", 1000)
	if _, err := publisher.Publish(ctx, &pubsub.Message{Data: []byte(text)}).Get(ctx); err != nil {
		return err
	}
	return p.receive(ctx, nil, func(got *pubsub.Message) (bool, error) {
		got.Ack()
		if string(got.Data) != text {
			return false, fmt.Errorf("%d bytes arrived", len(got.Data))
		}
		return true, nil
	})
}
