package main

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/pubsub/v2"
	pb "cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

func expect(code codes.Code, err error, what string) error {
	if status.Code(err) == code {
		return nil
	}
	return fmt.Errorf("%s: %v instead of %v", what, err, code)
}

func administered(ctx context.Context, p *place) error {
	topics, subscriptions := p.client.TopicAdminClient, p.client.SubscriptionAdminClient
	_, err := topics.CreateTopic(ctx, &pb.Topic{Name: p.topic})
	if err := expect(codes.AlreadyExists, err, "an existing topic"); err != nil {
		return err
	}
	policy := &pb.MessageStoragePolicy{AllowedPersistenceRegions: []string{"europe-west1"}}
	updated, err := topics.UpdateTopic(ctx, &pb.UpdateTopicRequest{
		Topic:      &pb.Topic{Name: p.topic, MessageStoragePolicy: policy, Labels: map[string]string{"team": "orders"}},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"message_storage_policy", "labels"}},
	})
	if err != nil {
		return err
	}
	if updated.MessageStoragePolicy.GetAllowedPersistenceRegions()[0] != "europe-west1" || updated.Labels["team"] != "orders" {
		return fmt.Errorf("the update has no effect: %v", updated)
	}
	names := topics.ListTopicSubscriptions(ctx, &pb.ListTopicSubscriptionsRequest{Topic: p.topic})
	if name, err := names.Next(); err != nil || name != p.subscription {
		return fmt.Errorf("listed %q: %v", name, err)
	}
	if _, err := names.Next(); err != iterator.Done {
		return fmt.Errorf("more than one subscription: %v", err)
	}
	stopPushing := &pb.ModifyPushConfigRequest{Subscription: p.subscription, PushConfig: &pb.PushConfig{}}
	if err := subscriptions.ModifyPushConfig(ctx, stopPushing); err != nil {
		return err
	}
	if err := topics.DeleteTopic(ctx, &pb.DeleteTopicRequest{Topic: p.topic}); err != nil {
		return err
	}
	orphan, err := subscriptions.GetSubscription(ctx, &pb.GetSubscriptionRequest{Subscription: p.subscription})
	if err != nil || orphan.Topic != "_deleted-topic_" {
		return fmt.Errorf("the subscription of a deleted topic: %v: %v", orphan, err)
	}
	if err := subscriptions.DeleteSubscription(ctx, &pb.DeleteSubscriptionRequest{Subscription: p.subscription}); err != nil {
		return err
	}
	_, err = topics.GetTopic(ctx, &pb.GetTopicRequest{Topic: p.topic})
	return expect(codes.NotFound, err, "a deleted topic")
}

func refusedSettings(ctx context.Context, p *place) error {
	seconds := func(count time.Duration) *durationpb.Duration { return durationpb.New(count * time.Second) }
	for name, change := range map[string]func(*pb.Subscription){
		"a minimum back-off above the maximum": func(it *pb.Subscription) {
			it.RetryPolicy = &pb.RetryPolicy{MinimumBackoff: seconds(20), MaximumBackoff: seconds(10)}
		},
		"expiry after an hour": func(it *pb.Subscription) {
			it.ExpirationPolicy = &pb.ExpirationPolicy{Ttl: seconds(3600)}
		},
		"a label with a capital": func(it *pb.Subscription) { it.Labels = map[string]string{"Team": "orders"} },
		"an ack deadline of 5 s": func(it *pb.Subscription) { it.AckDeadlineSeconds = 5 },
		"a malformed filter":     func(it *pb.Subscription) { it.Filter = "event_type = \"a\"" },
	} {
		subscription := &pb.Subscription{Name: p.subscription + "-refused", Topic: p.topic}
		change(subscription)
		_, err := p.client.SubscriptionAdminClient.CreateSubscription(ctx, subscription)
		if err := expect(codes.InvalidArgument, err, name); err != nil {
			return err
		}
	}
	return nil
}

func snapshots(ctx context.Context, p *place) error {
	if _, err := p.publish(ctx, "k", "kept"); err != nil {
		return err
	}
	subscriptions := p.client.SubscriptionAdminClient
	// Without a name, so that the service chooses one.
	snapshot, err := subscriptions.CreateSnapshot(ctx, &pb.CreateSnapshotRequest{Subscription: p.subscription})
	if err != nil {
		return err
	}
	receive := func() error {
		return p.receive(ctx, nil, func(got *pubsub.Message) (bool, error) {
			got.Ack()
			return string(got.Data) == "kept", nil
		})
	}
	if err := receive(); err != nil {
		return err
	}
	target := &pb.SeekRequest_Snapshot{Snapshot: snapshot.Name}
	if _, err := subscriptions.Seek(ctx, &pb.SeekRequest{Subscription: p.subscription, Target: target}); err != nil {
		return err
	}
	if err := receive(); err != nil {
		return err
	}
	return subscriptions.DeleteSnapshot(ctx, &pb.DeleteSnapshotRequest{Snapshot: snapshot.Name})
}
