// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/groups/parameter_census.h"

#include "support/expect_error.h"
#include "tessera/sharding/interception/page_key.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace tessera::sharding::parameter_census_test {

namespace {

/// A module with the given parameters, "p0", "p1", ...
struct Holder : torch::nn::Module {
  explicit Holder(const std::vector<at::Tensor>& tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      register_parameter(
          "p" + std::to_string(i), tensors[i], tensors[i].is_floating_point());
    }
  }
};

void expect_refused(
    const std::vector<at::Tensor>& tensors,
    std::initializer_list<const char*> parts) {
  const Holder holder(tensors);
  expect_error(
      [&] { take_parameter_census(holder, ModuleChoices(holder)); }, parts);
}

} // namespace

TEST(ParameterCensus, ListsEachParameterOnceWithAllItsNames) {
  const auto shared = torch::randn({3});
  struct Net : torch::nn::Module {
    explicit Net(const at::Tensor& shared) {
      register_module("a", std::make_shared<Holder>(std::vector{shared}));
      register_parameter("own", torch::zeros({2}));
      register_module("b", std::make_shared<Holder>(std::vector{shared}));
    }
  } net(shared);
  const auto records = take_parameter_census(net, ModuleChoices(net));
  ASSERT_EQ(records.size(), 2);
  EXPECT_EQ(records[0].name(), "own");
  EXPECT_EQ(records[1].spec.names, (std::vector<std::string>{"a.p0", "b.p0"}));
  EXPECT_TRUE(records[1].tensor.is_same(shared));
}

TEST(ParameterCensus, StrangeButPossibleParametersAreTaken) {
  const auto big = torch::randn({4, 6});
  const Holder holder(
      {torch::randn({}), // one number
       torch::empty({0, 3}),
       big.narrow(0, 0, 2).detach(),
       big.narrow(0, 2, 2).detach(),
       torch::randn({3, 4}).t().detach(),
       torch::ones({3}, torch::kLong),
       torch::ones({3}, torch::kBool)});
  EXPECT_EQ(take_parameter_census(holder, ModuleChoices(holder)).size(), 7);
}

TEST(ParameterCensus, RefusesWhatCannotBeDivided) {
  torch::nn::Module empty;
  expect_error(
      [&] { take_parameter_census(empty, ModuleChoices(empty)); },
      {"no parameters"});
  expect_refused(
      {torch::zeros({2}), torch::eye(3).to_sparse()},
      {"'p1'", "Sparse", "dense"});
  expect_refused(
      {torch::zeros({2}), torch::empty({2}, torch::kMeta)},
      {"'p1'", "meta", "cpu", "one device"});
  const auto big = torch::randn({10});
  expect_refused(
      {big.narrow(0, 0, 6).detach(), big.narrow(0, 5, 5).detach()},
      {"'p0'", "'p1'", "same memory", "register one tensor"});
  const auto table = torch::randn({4, 6});
  expect_refused(
      {table.narrow(1, 0, 3).detach(), table.narrow(1, 3, 3).detach()},
      {"'p0'", "'p1'"});
  expect_refused(
      {torch::randn({1, 3}).expand({4, 3}).detach()}, {"'p0'", "contiguous"});
}

TEST(ParameterCensus, RefusesWhatAnotherEngineHolds) {
  const auto held = torch::randn({3});
  add_page_key(held);
  // Registration itself would not touch a wrapped module's parameters.
  remove_page_key(held);
  const Holder holder({held});
  add_page_key(held);
  expect_error(
      [&] { take_parameter_census(holder, ModuleChoices(holder)); },
      {"'p0'", "another engine", "unwrap()"});
  remove_page_key(held);
}

TEST(ParameterCensus, ExtentOfStridedTensors) {
  EXPECT_EQ(storage_extent(torch::empty({})), 1);
  EXPECT_EQ(storage_extent(torch::empty({0, 5})), 0);
  EXPECT_EQ(storage_extent(torch::empty({3, 4})), 12);
  EXPECT_EQ(storage_extent(torch::empty({3, 4}).t()), 12);
  EXPECT_EQ(storage_extent(torch::empty({3, 4}).narrow(1, 0, 2)), 10);
  EXPECT_EQ(storage_extent(torch::empty({3, 4}).narrow(0, 1, 1)), 4);
}

TEST(ParameterCensus, RefusesMetaTensors) {
  torch::nn::Module module;
  module.register_parameter("weight", torch::empty({3, 3}, torch::kMeta));
  expect_error(
      [&] { take_parameter_census(module, ModuleChoices(module)); },
      {"'weight' is on the meta device", "tessera::lazy()"});
}

TEST(ParameterCensus, RefusesNamesThatAreNotUtf8) {
  torch::nn::Module named;
  named.register_parameter("we\xffight", torch::ones(3));
  expect_error(
      [&] { take_parameter_census(named, ModuleChoices(named)); },
      {"we", "ight", "is not UTF-8"});
  torch::nn::Module buffered;
  buffered.register_parameter("w\u00e9ight", torch::ones(3));
  EXPECT_EQ(
      take_parameter_census(buffered, ModuleChoices(buffered)).size(), 1U);
  buffered.register_buffer("sca\xffle", torch::ones(3));
  expect_error(
      [&] { take_parameter_census(buffered, ModuleChoices(buffered)); },
      {"sca", "is not UTF-8"});
}

} // namespace tessera::sharding::parameter_census_test
