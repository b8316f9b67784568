// The official Go client against the Pub/Sub at PUBSUB_EMULATOR_HOST. Prints "ok" or "failed" with
// the name of each check, and exits with 1 if a check failed. With the argument "idle", makes only the
// check that takes more than a minute.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"cloud.google.com/go/pubsub/v2"
	pb "cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
)

const (
	project = "go-client"
	// Enough for a busy machine: a check that passes takes a second at most.
	deadline = 60 * time.Second
	// An idle subscriber pings twice in this time.
	idleTime = 70 * time.Second
	limit    = 5 * time.Minute
)

// A check has a topic and an ordered subscription of its own.
type check struct {
	name string
	run  func(context.Context, *place) error
}

var checks = []check{
	{"messages arrive as they were published", arriveAsPublished},
	{"a rejected message is redelivered", redelivered},
	{"messages of a key arrive in order", inOrder},
	{"a refused key waits until it is resumed", resumed},
	{"the subscriber bounds unacknowledged messages", boundedSubscriber},
	{"the publisher bounds outstanding messages", boundedPublisher},
	{"exactly-once acknowledgements are confirmed", exactlyOnce},
	{"compressed requests are accepted", compressed},
	{"topics and subscriptions are administered", administered},
	{"settings that production refuses are refused", refusedSettings},
	{"a subscription returns to a snapshot", snapshots},
}

var idleChecks = []check{{"an idle subscriber receives after 70 s", idle}}

type place struct {
	client       *pubsub.Client
	topic        string
	subscription string
}

// newPlace creates a topic and a subscription, which `change` may change before.
func newPlace(ctx context.Context, client *pubsub.Client, id string, change func(*pb.Subscription)) (*place, error) {
	it := &place{
		client:       client,
		topic:        fmt.Sprintf("projects/%s/topics/%s", project, id),
		subscription: fmt.Sprintf("projects/%s/subscriptions/%s", project, id),
	}
	if _, err := client.TopicAdminClient.CreateTopic(ctx, &pb.Topic{Name: it.topic}); err != nil {
		return nil, err
	}
	subscription := &pb.Subscription{Name: it.subscription, Topic: it.topic, EnableMessageOrdering: true}
	if change != nil {
		change(subscription)
	}
	_, err := client.SubscriptionAdminClient.CreateSubscription(ctx, subscription)
	return it, err
}

func runOne(client *pubsub.Client, number int, it check) error {
	ctx, cancel := context.WithTimeout(context.Background(), deadline+idleTime)
	defer cancel()
	where, err := newPlace(ctx, client, fmt.Sprintf("check-%d", number), nil)
	if err != nil {
		return err
	}
	return it.run(ctx, where)
}

func main() {
	// Ends the process when the checks hang, so that nothing is left behind.
	time.AfterFunc(limit, func() {
		fmt.Println("failed: no end within", limit)
		os.Exit(1)
	})
	client, err := pubsub.NewClient(context.Background(), project)
	if err != nil {
		fmt.Println("failed: no client:", err)
		os.Exit(1)
	}
	failed := 0
	chosen := checks
	if len(os.Args) > 1 && os.Args[1] == "idle" {
		chosen = idleChecks
	}
	for number, it := range chosen {
		if err := runOne(client, number, it); err != nil {
			failed++
			fmt.Printf("failed: %s: %v\n", it.name, err)
			continue
		}
		fmt.Println("ok:", it.name)
	}
	if failed > 0 {
		os.Exit(1)
	}
}
