// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/pages/tied_parameters.h"
#include "support/expect_error.h"
#include "support/ranks.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

namespace tessera::sharding::tied_parameters_test {

namespace {

using Names = std::vector<std::vector<std::string>>;

/// A module with parameters of these names, each under one name or several.
struct Stage : torch::nn::Module {
  explicit Stage(const Names& parameters) {
    for (const std::vector<std::string>& names : parameters) {
      const at::Tensor parameter = torch::ones({2, 3});
      for (const std::string& name : names) {
        register_parameter(name, parameter);
      }
    }
  }
};

} // namespace

TEST(TiedParameters, AreThoseOfSeveralStages) {
  tests::run_ranks(3, [](World& world) {
    const Stage stage(std::vector<Names>{
        {{"first"}, {"both"}},
        {{"both"}, {"last"}},
        {{"last"}, {"own"}}}[static_cast<size_t>(world.rank())]);
    const auto tied = find_tied_parameters(world, {0, 1, 2}, stage);
    using Tied = std::map<std::string, std::vector<int>>;
    const std::vector<Tied> expected{
        {{"both", {0, 1}}},
        {{"both", {0, 1}}, {"last", {1, 2}}},
        {{"last", {1, 2}}}};
    EXPECT_EQ(tied, expected[static_cast<size_t>(world.rank())]);
  });
}

TEST(TiedParameters, HaveTheSameNamesOnAllStages) {
  tests::run_ranks(3, [](World& world) {
    const Stage stage(std::vector<Names>{
        {{"a", "z"}}, {{"z"}}, {{"a"}}}[static_cast<size_t>(world.rank())]);
    const auto find = [&] { find_tied_parameters(world, {0, 1, 2}, stage); };
    if (world.rank() == 0) {
      expect_error(find, {"'a' and 'z' are one parameter"});
    } else {
      find();
    }
  });
}

TEST(TiedParameters, HaveOneShape) {
  tests::run_ranks(2, [](World& world) {
    Stage stage({{"other"}});
    stage.register_parameter("both", torch::ones({2 + world.rank()}));
    expect_error(
        [&] {
          find_tied_parameters(world, {0, 1}, stage);
        },
        {"different parameters named 'both'"});
  });
}

} // namespace tessera::sharding::tied_parameters_test
