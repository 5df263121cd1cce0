// SPDX-License-Identifier: Apache-2.0
// A training run that dies and is resumed ends where an undisturbed one ends;
// a range test finds the rate at which a loss falls.
#include "engine/checkpoint/checkpoint_support.h"

#include "support/ranks.h"
#include "tessera/engine/trainer/trainer.h"
#include "tessera/runtime/io/atomic_file.h"

#include <algorithm>
#include <optional>

namespace tessera::engine::trainer_resume_test {

namespace {

using namespace tests;

/// Batches in an order that each epoch draws; may die at one.
class RandomTask : public TrainingTask {
 public:
  explicit RandomTask(Restless net, int64_t dies_at = -1)
      : net_(std::move(net)), dies_at_(dies_at) {}

  int64_t batches_per_epoch() const override {
    return 4;
  }
  int64_t batch_size() const override {
    return 5;
  }
  void begin_epoch(int64_t epoch) override {
    epoch_ = epoch;
  }
  MicroBatch forward(int64_t index) override {
    TESSERA_CHECK(done_++ != dies_at_, "the machine is gone");
    auto generator = torch::make_generator<at::CPUGeneratorImpl>(
        static_cast<uint64_t>(100 * epoch_ + index));
    const auto x = torch::randn({5, 7}, generator);
    return {net_->forward(x).square().mean(), 35};
  }

 private:
  Restless net_;
  int64_t dies_at_;
  int64_t epoch_ = -1;
  int64_t done_ = 0;
};

/// Whether a batch may begin at any sample.
enum class Begins { kAnywhere, kAtBatches };

/// 24 samples an epoch, shared among the ranks.
class RowTask : public TrainingTask {
 public:
  RowTask(
      Restless net,
      int ranks,
      int64_t batch_size,
      Begins begins,
      int64_t dies_at = -1,
      int64_t per_step = 1)
      : net_(std::move(net)),
        batch_size_(batch_size),
        begins_(begins),
        batches_(24, batch_size * ranks, 24 / (batch_size * ranks), per_step),
        dies_at_(dies_at) {}

  int64_t batches_per_epoch() const override {
    return batches_.per_epoch();
  }
  int64_t samples_per_epoch() const override {
    return begins_ == Begins::kAnywhere ? 24 : 0;
  }
  int64_t batches_per_step() const override {
    return batches_.per_step();
  }
  void begin_at(const SamplePosition& position) override {
    batches_.begin_at(position);
  }
  int64_t batch_size() const override {
    return batch_size_;
  }
  void begin_epoch(int64_t epoch) override {
    epoch_ = epoch;
  }
  MicroBatch forward(int64_t index) override {
    TESSERA_CHECK(done_++ != dies_at_, "the machine is gone");
    if (!first_) {
      first_ = batches_.position_of(epoch_ * batches_.per_epoch() + index);
    }
    epochs_.push_back(epoch_);
    return {net_->forward(torch::randn({5, 7})).square().mean(), 1};
  }
  /// Where the first batch began.
  const SamplePosition& first() const {
    return *first_;
  }
  /// That of each batch.
  const std::vector<int64_t>& epochs() const {
    return epochs_;
  }

 private:
  Restless net_;
  int64_t batch_size_;
  Begins begins_;
  EpochBatches batches_;
  int64_t dies_at_;
  std::optional<SamplePosition> first_;
  std::vector<int64_t> epochs_;
  int64_t epoch_ = 0;
  int64_t done_ = 0;
};

TrainerOptions options_of(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  TrainerOptions options;
  options.epochs = 3;
  options.accumulate = 2;
  options.clip_grad_norm = 1;
  options.schedule.decay = LrDecay::kCosine;
  options.save_every = 2;
  options.run_folder = folder;
  return options;
}

int64_t lines_of(const std::filesystem::path& file) {
  const std::string text = runtime::read_text_file(file);
  return std::count(text.begin(), text.end(), '\n');
}

} // namespace

TEST(TrainerResume, EndsWhereAnUndisturbedRunEnds) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    auto net = make_restless(1, torch::kFloat);
    auto engine = wrap(net, group_per_layer());
    torch::manual_seed(4);
    RandomTask task(net);
    const auto summary =
        train(world, engine, task, options_of(folder / "whole"));
    EXPECT_EQ(summary.steps, 6);
    const auto expected = values_of(engine, *net);

    const auto options = options_of(folder / "broken");
    {
      auto victim = make_restless(1, torch::kFloat);
      auto dying = wrap(victim, group_per_layer());
      torch::manual_seed(4);
      RandomTask dies(victim, /*dies_at=*/11);
      EXPECT_THROW(train(world, dying, dies, options), Error);
    }
    auto again = make_restless(2, torch::kFloat);
    auto resumed = wrap(again, group_per_layer());
    RandomTask rest(again);
    auto resuming = options;
    resuming.resume = true;
    EXPECT_EQ(train(world, resumed, rest, resuming).steps, 6);
    expect_equal(values_of(resumed, *again), expected, "resumed");
    if (world.rank() == 0) {
      EXPECT_EQ(lines_of(folder / "broken/metrics.jsonl"), 6);
    }
  });
}

// 24 samples an epoch, of which two ranks have seen 16 when they stop.
TEST(TrainerResume, TakesUpTheSamplesUnderOtherRanksAndBatches) {
  struct Case {
    int ranks;
    int64_t batch_size;
    Begins begins;
    int64_t first_sample; ///< that it goes on with
    int64_t total_steps;
  };
  // A batch of 6 begins with the twelfth sample: 4 are seen again, if batches
  // begin nowhere else.
  for (const Case& given :
       {Case{2, 2, Begins::kAtBatches, 16, 12},
        {2, 1, Begins::kAtBatches, 16, 20},
        {2, 3, Begins::kAtBatches, 12, 10},
        {1, 4, Begins::kAtBatches, 16, 12},
        {2, 2, Begins::kAnywhere, 16, 12},
        {2, 3, Begins::kAnywhere, 16, 9},
        {3, 1, Begins::kAnywhere, 16, 14}}) {
    const TemporaryFolder folder;
    auto options = options_of(folder / "run");
    options.epochs = 2;
    options.accumulate = 1;
    options.save_every = 4;
    run_ranks(2, [&](World& world) {
      auto net = make_restless(1, torch::kFloat);
      auto engine = wrap(net, group_per_layer());
      RowTask task(net, world.size(), 2, given.begins, /*dies_at=*/4);
      EXPECT_THROW(train(world, engine, task, options), Error);
    });
    run_ranks(given.ranks, [&](World& world) {
      auto net = make_restless(2, torch::kFloat);
      auto engine = wrap(net, group_per_layer());
      RowTask task(net, world.size(), given.batch_size, given.begins);
      auto resuming = options;
      resuming.resume = true;
      EXPECT_EQ(train(world, engine, task, resuming).steps, given.total_steps);
      EXPECT_EQ(task.first().epoch, 0);
      EXPECT_EQ(task.first().samples, given.first_sample);
    });
  }
}

// Three of six batches have been trained on when steps become those of two.
TEST(TrainerResume, LeavesTheRestOfAnEpochInWholeSteps) {
  const TemporaryFolder folder;
  auto options = options_of(folder / "run");
  options.epochs = 2;
  options.accumulate = 1;
  options.save_every = 3;
  run_ranks(2, [&](World& world) {
    auto net = make_restless(1, torch::kFloat);
    auto engine = wrap(net, group_per_layer());
    RowTask task(net, world.size(), 2, Begins::kAnywhere, /*dies_at=*/3);
    EXPECT_THROW(train(world, engine, task, options), Error);

    auto again = make_restless(2, torch::kFloat);
    auto resumed = wrap(again, group_per_layer());
    RowTask rest(
        again,
        world.size(),
        2,
        Begins::kAnywhere,
        /*dies_at=*/-1,
        /*per_step=*/2);
    auto resuming = options;
    resuming.accumulate = 2;
    resuming.resume = true;
    EXPECT_EQ(train(world, resumed, rest, resuming).steps, 3 + 1 + 3);
    EXPECT_EQ(rest.first().samples, 12);
    EXPECT_EQ(rest.epochs(), (std::vector<int64_t>{0, 0, 1, 1, 1, 1, 1, 1}));
  });
}

} // namespace tessera::engine::trainer_resume_test
