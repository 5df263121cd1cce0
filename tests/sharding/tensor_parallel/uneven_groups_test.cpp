// SPDX-License-Identifier: Apache-2.0
// Tensor-parallel ranks whose partitions differ in size have the same groups,
// under any limits: those of the whole model.
#include "sharding/pages/grouped.h"
#include "sharding/tensor_parallel/plain_model.h"
#include "support/ranks.h"
#include "tessera/sharding/tensor_parallel/tensor_plan.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

namespace tessera::sharding::uneven_groups_test {

namespace {

using enum TensorDivision;

/// Group names, and the names of their parameters.
std::vector<std::string> groups_of(
    const torch::nn::Module& module,
    const GroupPolicy& policy) {
  std::vector<std::string> lines;
  for (const PageSpec& group : tests::grouped(module, policy)) {
    std::string line = group.name + ":";
    for (const PagedParameter& parameter : group.parameters) {
      line += " " + parameter.record.name();
    }
    lines.push_back(line);
  }
  return lines;
}

/// 6 heads, 37 tokens and 50 inner features.
void check_groups(World& world, bool tied) {
  auto group = world.new_communicator("tensor");
  const PlainModelOptions options{.tied = tied};
  const int64_t head = options.features / options.heads;
  PlainModel full(options);
  PlainModel divided(options);
  apply_tensor_plan(
      *divided,
      {{"embed", kVocab},
       {"layers.*.attention.output", kRow, head},
       {"layers.*.attention.*", kColumn, head},
       {"layers.*.mlp.0", kColumn},
       {"layers.*.mlp.2", kRow},
       {"head", kColumnGathered}},
      {group.get()});
  size_t most = 0;
  for (const bool apart : {false, true}) {
    for (int64_t min = 0; min < 6000; min += 50) {
      for (const int64_t max : {int64_t{0}, min, min + 1000, min + 5000}) {
        GroupPolicy policy;
        policy.min_group_numel = min;
        policy.max_group_numel = max;
        policy.vocabulary_apart = apart;
        const auto expected = groups_of(*full, policy);
        ASSERT_EQ(groups_of(*divided, policy), expected)
            << "min " << min << ", max " << max << ", apart " << apart;
        most = std::max(most, expected.size());
      }
    }
  }
  EXPECT_GE(most, 3U) << "the limits separate nothing";
}

class UnevenGroups : public ::testing::TestWithParam<int> {};

} // namespace

TEST_P(UnevenGroups, AreThoseOfTheWholeModel) {
  tests::run_ranks(GetParam(), [](World& world) {
    for (const bool tied : {false, true}) {
      check_groups(world, tied);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, UnevenGroups, ::testing::Values(2, 3, 4));

} // namespace tessera::sharding::uneven_groups_test
