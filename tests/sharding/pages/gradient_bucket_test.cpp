// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/pages/gradient_bucket.h"

#include "support/expect_error.h"
#include "support/ranks.h"

#include "tessera/sharding/interception/page_faults.h"
#include "tessera/sharding/pages/page_spec.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>

namespace tessera::sharding::gradient_bucket_test {

namespace {

class NoHandler : public PageFaultHandler {
 public:
  void on_access(c10::ArrayRef<PageAccess>, const char*) override {}
  void on_token_add(size_t, const at::Tensor&) override {}
  void on_token_zero(size_t) override {}
};

/// The bucket of one weight, in a world of one.
struct Subject {
  explicit Subject(World& world) : replicas(world.new_communicator("copies")) {
    ensure_page_key_registered();
    weight.set_requires_grad(true);
    PageSpec spec;
    spec.name = "layer";
    spec.parameters.push_back(
        {{full_spec(
              {"layer.weight"}, weight.sizes().vec(), weight.scalar_type()),
          weight}});
    group = std::make_unique<PageMemory>(
        lay_out(spec, 0, 0, {}, shard_mesh(0, 1, 0)), handler, ledger);
    bucket =
        std::make_unique<GradientBucket>(*group, handler, *replicas, ledger);
    group->attach_shard();
  }

  at::Tensor weight = torch::arange(6.0);
  std::unique_ptr<Communicator> replicas;
  NoHandler handler;
  MemoryLedger ledger;
  runtime::StreamLane lane{at::kCPU};
  std::unique_ptr<PageMemory> group;
  std::unique_ptr<GradientBucket> bucket;
};

} // namespace

TEST(GradientBucket, GoesThroughItsStatesInOrder) {
  tests::run_ranks(1, [](World& world) {
    Subject subject(world);
    GradientBucket& bucket = *subject.bucket;
    EXPECT_FALSE(bucket.is_open());
    bucket.open({});
    EXPECT_TRUE(bucket.is_open());
    bucket.add(0, torch::ones({6}));
    bucket.begin_reduce(*subject.replicas, subject.lane);
    EXPECT_TRUE(bucket.is_reducing());
    bucket.end_reduce({});
    EXPECT_FALSE(bucket.is_open());
    bucket.release_slot();
    EXPECT_TRUE(
        torch::equal(bucket.shard().load().narrow(0, 0, 6), torch::ones({6})));
  });
}

TEST(GradientBucket, RefusesWhatItsStateDoesNotAllow) {
  tests::run_ranks(1, [](World& world) {
    Subject subject(world);
    GradientBucket& bucket = *subject.bucket;
    const auto refused = [](const auto& action) {
      expect_error(
          action, {"gradients of group 'layer'", "takes that they are"});
    };
    refused([&] { bucket.end_reduce({}); });
    refused([&] { bucket.release_slot(); });
    bucket.open({});
    refused([&] { bucket.open({}); });
    refused([&] { bucket.release_slot(); });
    bucket.begin_reduce(*subject.replicas, subject.lane);
    refused([&] { bucket.close_empty(); });
    refused([&] { bucket.begin_reduce(*subject.replicas, subject.lane); });
    bucket.end_reduce({});
    refused([&] { bucket.open({}); });
    bucket.release_slot();
    bucket.open({});
    bucket.close_empty();
    EXPECT_FALSE(bucket.is_open());
  });
}

} // namespace tessera::sharding::gradient_bucket_test
