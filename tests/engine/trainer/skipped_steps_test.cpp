// SPDX-License-Identifier: Apache-2.0
// Steps whose float16 gradients overflow are told about.
#include "tessera/engine/trainer/skipped_steps.h"

#include "engine/checkpoint/checkpoint_support.h"
#include "support/ranks.h"
#include "tessera/engine/trainer/trainer.h"
#include "tessera/runtime/io/atomic_file.h"

namespace tessera::engine::skipped_steps_test {

namespace {

using namespace tests;

class RandomTask : public TrainingTask {
 public:
  explicit RandomTask(Restless net) : net_(std::move(net)) {}
  int64_t batches_per_epoch() const override {
    return 6;
  }
  int64_t batch_size() const override {
    return 5;
  }
  void begin_epoch(int64_t /*epoch*/) override {}
  MicroBatch forward(int64_t /*index*/) override {
    return {
        net_->forward(torch::randn({5, 7})).to(at::kFloat).square().mean(), 5};
  }

 private:
  Restless net_;
};

} // namespace

TEST(SkippedSteps, ToldNowAndThen) {
  double now_s = 0;
  SkippedSteps skipped([&] { return now_s; });
  EXPECT_EQ(
      skipped.add(1, 32768),
      "step 1 skipped: gradients overflowed, loss scale now 32768");
  EXPECT_EQ(skipped.add(2, 16384), std::nullopt);
  EXPECT_EQ(skipped.add(3, 8192), std::nullopt);
  now_s = 10;
  EXPECT_EQ(
      skipped.add(4, 4096),
      "step 4 skipped: gradients overflowed, loss scale now 4096 (and 2 "
      "before it)");
  EXPECT_EQ(skipped.count(), 4);
  EXPECT_EQ(
      skipped.summary(9, 4096),
      "4 of 9 steps were skipped, because gradients overflowed: they changed no "
      "weight; loss scale now 4096");
}

TEST(SkippedSteps, OneIsToldOnce) {
  SkippedSteps skipped([] { return 0.0; });
  EXPECT_EQ(skipped.summary(9, 4096), std::nullopt);
  skipped.add(1, 4096);
  EXPECT_EQ(skipped.summary(9, 4096), std::nullopt);
}

TEST(SkippedSteps, AreToldByTheTrainerOnce) {
  const TemporaryFolder folder;
  const auto results = run_ranks_expecting(2, [&](World& world) {
    auto net = make_restless(1, torch::kFloat);
    auto options = group_per_layer();
    options.precision.parameters = at::kHalf;
    // 2^40 overflows float16; six halvings do not mend it.
    options.loss_scale.initial = std::pow(2.0, 40);
    auto engine = wrap(net, options);
    RandomTask task(net);
    TrainerOptions training;
    training.run_folder = folder.path();
    training.clip_grad_norm = 1;
    train(world, engine, task, training);
  });
  const auto count = [](const std::string& text, const std::string& part) {
    int found = 0;
    for (auto at = text.find(part); at != std::string::npos;
         at = text.find(part, at + 1)) {
      ++found;
    }
    return found;
  };
  EXPECT_EQ(results[0].exit_code, 0) << results[0].output;
  EXPECT_EQ(
      count(
          results[0].output,
          "step 1 skipped: gradients overflowed, loss scale now 549755813888"),
      1)
      << results[0].output;
  EXPECT_EQ(
      count(
          results[0].output,
          "6 of 6 steps were skipped, because gradients overflowed: the weights "
          "are as they were"),
      1)
      << results[0].output;
  EXPECT_EQ(count(results[0].output, "skipped"), 2) << results[0].output;
  EXPECT_EQ(count(results[1].output, "skipped"), 0) << results[1].output;
  EXPECT_EQ(
      count(
          runtime::read_text_file(folder / "metrics.jsonl"),
          "\"grad_norm\":null"),
      6);
}

} // namespace tessera::engine::skipped_steps_test
