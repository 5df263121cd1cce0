// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/overlapped_linear.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/sharding/tensor_parallel/row_exchange.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

namespace tessera::sharding::overlapped_linear_test {

namespace {

// Float64 sums of some tens of numbers of size 1, in another order.
constexpr double kTolerance = 1e-12;

at::Tensor numbers(at::IntArrayRef sizes, int64_t seed) {
  torch::manual_seed(static_cast<uint64_t>(seed));
  return torch::randn(sizes, at::kDouble);
}

/// Different on all ranks, a leaf.
at::Tensor own_leaf(at::IntArrayRef sizes, int64_t seed, const World& world) {
  return numbers(sizes, 100 * seed + world.rank()).requires_grad_();
}

void expect_close(
    const std::vector<at::Tensor>& found,
    const std::vector<at::Tensor>& expected,
    const std::string& name) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].defined(), expected[i].defined()) << name << ": " << i;
    EXPECT_TRUE(
        !found[i].defined() ||
        found[i].allclose(expected[i], kTolerance, kTolerance))
        << name << ": " << i;
  }
}

constexpr int64_t kIn = 5;
constexpr int64_t kTokens = 12; // divided by 1, 2, 3 and 4

struct Case {
  bool sequence;
  int64_t sequence_dim;
  std::vector<int64_t> others; ///< sizes beside tokens and features
  int64_t chunks;

  TensorParallel tp(Communicator& group) const {
    return {
        .group = &group,
        .sequence = sequence,
        .sequence_dim = sequence_dim,
        .pieces = chunks};
  }
  std::vector<int64_t> sizes(int64_t tokens, int64_t features) const {
    std::vector<int64_t> sizes = others;
    sizes.insert(sizes.begin() + sequence_dim, tokens);
    sizes.push_back(features);
    return sizes;
  }
  std::string name() const {
    return std::string(sequence ? "sequence" : "whole") + " dim " +
           std::to_string(sequence_dim) + " of " +
           std::to_string(others.size() + 2) + ", pieces " +
           std::to_string(chunks);
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const bool sequence : {false, true}) {
    for (const int64_t chunks : {1, 2, 5, 100}) {
      all.push_back({sequence, 0, {}, chunks});
      all.push_back({sequence, 1, {2}, chunks});
      all.push_back({sequence, 0, {3}, chunks});
      all.push_back({sequence, 2, {2, 3}, chunks});
    }
  }
  return all;
}

/// Backend of two ranks in one, which notes what is issued and waited for. All
/// collectives leave the other rank's part as it was.
class NotingBackend : public c10d::Backend {
 public:
  explicit NotingBackend(std::vector<std::string>& notes)
      : Backend(0, 2), notes_(notes) {}

  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor&,
      at::Tensor&,
      const c10d::AllgatherOptions&) override {
    return noted();
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor&,
      at::Tensor&,
      const c10d::ReduceScatterOptions&) override {
    return noted();
  }
  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>&,
      const c10d::AllreduceOptions&) override {
    return noted();
  }
  const std::string getBackendName() const override {
    return "noting";
  }

 private:
  struct NotedWork : c10d::Work {
    NotedWork(std::vector<std::string>& notes, int number)
        : notes(notes), number(number) {}
    bool wait(std::chrono::milliseconds) override {
      notes.push_back("wait " + std::to_string(number));
      return true;
    }
    bool isCompleted() override {
      return true;
    }
    std::vector<std::string>& notes;
    int number;
  };

  c10::intrusive_ptr<c10d::Work> noted() {
    notes_.push_back("send " + std::to_string(issued_));
    return c10::make_intrusive<NotedWork>(notes_, issued_++);
  }

  std::vector<std::string>& notes_;
  int issued_ = 0;
};

} // namespace

TEST(OverlappedLinear, EntersAsTheLayersDoOneByOne) {
  for (const int ranks : {1, 2, 3, 4}) {
    tests::run_ranks(ranks, [](World& world) {
      const auto group = world.new_communicator("tensor");
      for (const Case& one : cases()) {
        const TensorParallel tp = one.tp(*group);
        const int64_t tokens = one.sequence ? kTokens / world.size() : kTokens;
        const at::Tensor x =
            numbers(
                one.sizes(tokens, kIn), one.sequence ? 10 + world.rank() : 10)
                .requires_grad_();
        const at::Tensor w1 = own_leaf({3, kIn}, 1, world);
        const at::Tensor b1 = own_leaf({3}, 2, world);
        const at::Tensor w2 = own_leaf({4, kIn}, 3, world);
        const at::Tensor w3 = own_leaf({2, kIn}, 4, world);
        const at::Tensor b3 = own_leaf({2}, 5, world);
        const std::vector<at::Tensor> leaves{x, w1, b1, w2, w3, b3};
        const auto results =
            enter_linear(x, {{w1, b1}, {w2, {}}, {w3, b3}}, tp);
        const at::Tensor entered = enter_layer(x, tp);
        const std::vector<at::Tensor> expected{
            at::linear(entered, w1, b1),
            at::linear(entered, w2),
            at::linear(entered, w3, b3)};
        expect_close(results, expected, one.name());
        std::vector<at::Tensor> gradients;
        for (size_t i = 0; i < results.size(); ++i) {
          gradients.push_back(numbers(
              expected[i].sizes(),
              static_cast<int64_t>(i) + 50 * world.rank()));
        }
        const auto of_expected = torch::autograd::grad(
            expected, leaves, gradients, /*retain_graph=*/true);
        expect_close(
            torch::autograd::grad(results, leaves, gradients, true),
            of_expected,
            one.name() + ", gradients");
        expect_close(
            torch::autograd::grad(results, leaves, gradients, true, true),
            of_expected,
            one.name() + ", gradients that have gradients");
        // Of some arguments alone, as pipelines and frozen parameters want it.
        expect_close(
            torch::autograd::grad(results, {x}, gradients, true),
            {of_expected[0]},
            one.name() + ", of the input");
        expect_close(
            torch::autograd::grad(results, {w2, b3}, gradients),
            {of_expected[3], of_expected[5]},
            one.name() + ", of parameters");
      }
    });
  }
}

TEST(OverlappedLinear, LeavesAsTheLayerDoes) {
  for (const int ranks : {1, 2, 3, 4}) {
    tests::run_ranks(ranks, [](World& world) {
      const auto group = world.new_communicator("tensor");
      for (const Case& one : cases()) {
        const TensorParallel tp = one.tp(*group);
        const at::Tensor x = own_leaf(one.sizes(kTokens, 3), 1, world);
        const at::Tensor w = own_leaf({kIn, 3}, 2, world);
        const at::Tensor y = leave_linear(x, w, tp);
        const at::Tensor expected = leave_layer(at::linear(x, w), tp);
        expect_close({y}, {expected}, one.name());
        const at::Tensor gradient =
            numbers(expected.sizes(), one.sequence ? 60 + world.rank() : 60);
        const auto of_expected =
            torch::autograd::grad({expected}, {x, w}, {gradient}, true);
        expect_close(
            torch::autograd::grad({y}, {x, w}, {gradient}, true),
            of_expected,
            one.name() + ", gradients");
        expect_close(
            torch::autograd::grad({y}, {x, w}, {gradient}, true, true),
            of_expected,
            one.name() + ", gradients that have gradients");
        expect_close(
            torch::autograd::grad({y}, {w}, {gradient}, true),
            {of_expected[1]},
            one.name() + ", of the weight");
        expect_close(
            torch::autograd::grad({y}, {x}, {gradient}),
            {of_expected[0]},
            one.name() + ", of the input");
      }
    });
  }
}

TEST(OverlappedLinear, SequencesThatAreNotDividedAreAnError) {
  tests::run_ranks(2, [](World& world) {
    const auto group = world.new_communicator("tensor");
    expect_error(
        [&] {
          leave_linear(
              torch::ones({1, 3, 2}),
              torch::ones({4, 2}),
              {.group = group.get(), .sequence = true});
        },
        {"leave_linear", "[1, 3, 2]", "not divisible by the 2 ranks", "pad"});
  });
}

TEST(RowExchange, OnePieceIsUsedWhileTheNextTravels) {
  std::vector<std::string> notes;
  Communicator group(
      "noting",
      c10::make_intrusive<NotingBackend>(notes),
      std::chrono::seconds(1));
  const TensorParallel tp{
      .group = &group, .sequence = true, .sequence_dim = 0, .pieces = 3};
  const at::Tensor part = torch::ones({6, 2});
  const RowExchange exchange(part, tp);
  exchange.gather_chunks(part, [&](const Rows& rows, const at::Tensor& chunk) {
    EXPECT_EQ(chunk.size(0), 2);
    notes.push_back("use " + std::to_string(rows.begin));
  });
  EXPECT_EQ(
      notes,
      (std::vector<std::string>{
          "send 0",
          "send 1",
          "wait 0",
          "use 0",
          "use 6",
          "send 2",
          "wait 1",
          "use 2",
          "use 8",
          "wait 2",
          "use 4",
          "use 10"}));
}

TEST(RowExchange, OnePieceIsMadeWhileTheLastTravels) {
  for (const bool sequence : {false, true}) {
    std::vector<std::string> notes;
    Communicator group(
        "noting",
        c10::make_intrusive<NotingBackend>(notes),
        std::chrono::seconds(1));
    const TensorParallel tp{
        .group = &group, .sequence = sequence, .sequence_dim = 0, .pieces = 2};
    const at::Tensor full = torch::ones({4, 2});
    const RowExchange exchange = RowExchange::of_full(full, tp, "test");
    RowExchange::Reduced reduced = exchange.reduce_chunks(
        2, full, [&](const Rows& rows, at::Tensor& chunk) {
          chunk.zero_();
          notes.push_back("make " + std::to_string(rows.begin));
        });
    notes.emplace_back("else");
    EXPECT_EQ(reduced.wait().size(0), sequence ? 2 : 4);
    const std::vector<std::string> of_sequences{
        "make 0",
        "make 2",
        "send 0",
        "make 1",
        "make 3",
        "send 1",
        "else",
        "wait 0",
        "wait 1"};
    const std::vector<std::string> of_full{
        "make 0", "send 0", "make 2", "send 1", "else", "wait 0", "wait 1"};
    EXPECT_EQ(notes, sequence ? of_sequences : of_full);
  }
}

} // namespace tessera::sharding::overlapped_linear_test
