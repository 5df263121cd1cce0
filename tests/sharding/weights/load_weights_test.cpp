// SPDX-License-Identifier: Apache-2.0
// Weights from safetensors into modules that are whole, lazy or sharded.
#include "tessera/sharding/weights/load_weights.h"

#include "tessera/runtime/io/safetensors.h"

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/paging/pager.h"
#include "tessera/sharding/weights/weight_files.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace tessera::sharding::load_weights_test {

namespace {

namespace fs = std::filesystem;
using Weights = std::map<std::string, at::Tensor>;

runtime::SafetensorsDtype file_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return runtime::SafetensorsDtype::kF16;
    case at::kBFloat16:
      return runtime::SafetensorsDtype::kBF16;
    case at::kDouble:
      return runtime::SafetensorsDtype::kF64;
    case at::kLong:
      return runtime::SafetensorsDtype::kI64;
    default:
      return runtime::SafetensorsDtype::kF32;
  }
}

void write_weights(const fs::path& path, const Weights& weights) {
  std::vector<runtime::SafetensorsSpec> specs;
  for (const auto& [name, tensor] : weights) {
    specs.push_back(
        {name, file_dtype(tensor.scalar_type()), tensor.sizes().vec()});
  }
  runtime::SafetensorsWriter writer(path, specs);
  for (const auto& [name, tensor] : weights) {
    const at::Tensor rows = tensor.detach().contiguous();
    writer.write(
        name,
        {static_cast<const std::byte*>(rows.const_data_ptr()), rows.nbytes()});
  }
  writer.commit();
}

/// Tied, transposed, sliced, of several types, with buffers.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", torch::nn::Linear(70, 130))),
        norm(register_module("norm", torch::nn::BatchNorm1d(130))),
        half(register_module("half", torch::nn::Linear(9, 700))) {
    half->to(torch::kBFloat16);
    column = register_parameter("column", torch::randn({90, 60}).t());
    const auto both = torch::randn({2, 5'001});
    low = register_parameter("low", both[0]);
    high = register_parameter("high", both[1]);
    register_parameter("strided", torch::randn({70, 80}).select(1, 7));
    register_parameter("tied", first->weight);
  }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear half;
  at::Tensor column, low, high;
};
TORCH_MODULE(Net);

/// Numbers of its own for everything in a Net; bf16 where the module has it.
Weights weights_for(const Net& net, int64_t seed = 3) {
  torch::manual_seed(seed);
  Weights weights;
  for (const auto& item : net->named_parameters()) {
    if (item.key() != "tied") {
      weights[item.key()] =
          torch::randn(item.value().sizes(), item.value().scalar_type());
    }
  }
  for (const auto& item : net->named_buffers()) {
    weights[item.key()] = item.value().is_floating_point()
                              ? torch::rand(item.value().sizes())
                              : torch::full({}, 41, torch::kLong);
  }
  return weights;
}

void expect_loaded(const Net& net, const Weights& weights) {
  const auto parameters = net->named_parameters();
  const auto buffers = net->named_buffers();
  for (const auto& [name, want] : weights) {
    const at::Tensor* got = parameters.find(name);
    got = got != nullptr ? got : buffers.find(name);
    ASSERT_NE(got, nullptr) << name;
    EXPECT_TRUE(torch::equal(*got, want.to(got->scalar_type()))) << name;
  }
}

LazyOptions all_lazy() {
  LazyOptions options;
  options.min_numel = 0;
  options.seed = 5;
  return options;
}

Net lazy_net() {
  return lazy([] { return Net(); }, all_lazy());
}

} // namespace

TEST(LoadWeights, EachRankReadsItsPartInWrap) {
  const TemporaryFolder folder;
  for (const int ranks : {1, 2, 3}) {
    tests::run_ranks(ranks, [&](World& world) {
      const Weights weights = weights_for(Net());
      if (world.rank() == 0) {
        write_weights(folder / "model.safetensors", weights);
        runtime::write_file_atomically(folder / "ready", "");
      }
      while (!fs::exists(folder / "ready")) {
      }
      Net net = lazy_net();
      load_weights(*net, folder.path());
      MemoryLedger ledger;
      PagerOptions options;
      options.groups.min_group_numel = 0;
      Pager pager(world, *net, options, ledger);
      pager.unwrap();
      expect_loaded(net, weights);
    });
    fs::remove(folder / "ready");
  }
}

TEST(LoadWeights, StraightIntoShards) {
  const TemporaryFolder folder;
  for (const int ranks : {1, 2, 3}) {
    tests::run_ranks(ranks, [&](World& world) {
      const fs::path file =
          folder / ("of_rank_" + std::to_string(world.rank()) + ".safetensors");
      const Weights weights = weights_for(Net());
      write_weights(file, weights);
      torch::manual_seed(1);
      Net net;
      MemoryLedger ledger;
      Pager pager(world, *net, {}, ledger);
      Communicator alone("load"); // every rank has all tensors
      load_sharded_weights(pager, *net, WeightFiles::open(file), {}, alone);
      pager.unwrap();
      expect_loaded(net, weights);
    });
  }
}

TEST(LoadWeights, IntoAWholeModule) {
  const TemporaryFolder folder;
  Net net;
  const auto tied = net->named_parameters()["tied"];
  const Weights weights = weights_for(net);
  write_weights(folder / "model.safetensors", weights);
  const auto report = load_weights(*net, folder.path());
  expect_loaded(net, weights);
  EXPECT_TRUE(net->first->weight.is_same(tied));
  EXPECT_TRUE(net->first->weight.requires_grad());
  EXPECT_TRUE(report.missing.empty());
  EXPECT_TRUE(report.unexpected.empty());
}

TEST(LoadWeights, TwoValuesOfATiedParameterAreNamed) {
  const TemporaryFolder folder;
  const fs::path path = folder / "model.safetensors";
  Net net;
  Weights weights = weights_for(net);
  weights["tied"] = weights["first.weight"].clone();
  write_weights(path, weights);
  EXPECT_TRUE(load_weights(*net, path).left_out.empty());
  expect_loaded(net, weights);

  weights["tied"][129][69] += 1; // the last element
  write_weights(path, weights);
  expect_error(
      [&] { load_weights(*net, path); },
      {"'tied': it has other values than 'first.weight'", "rename_rules"});
  LoadWeightsOptions options;
  options.strict = false;
  EXPECT_EQ(
      load_weights(*net, path, options).left_out,
      std::vector<std::string>{"tied"});
  weights.erase("tied");
  expect_loaded(net, weights);
}

TEST(LoadWeights, ConvertsFloatingPointNumbers) {
  for (const auto dtype :
       {torch::kDouble, torch::kFloat, torch::kHalf, torch::kBFloat16}) {
    const TemporaryFolder folder;
    Net net = lazy_net();
    Weights weights = weights_for(net);
    for (auto& [name, tensor] : weights) {
      tensor = tensor.is_floating_point() ? tensor.to(dtype) : tensor;
    }
    write_weights(folder / "x.safetensors", weights);
    load_weights(*net, folder / "x.safetensors");
    materialize(*net);
    expect_loaded(net, weights);
  }
}

TEST(LoadWeights, LazyModulesReadWhenTheyGetMemory) {
  const TemporaryFolder folder;
  const Weights weights = weights_for(Net());
  write_weights(folder / "model.safetensors", weights);
  Net net = lazy_net();
  load_weights(*net, folder.path());
  EXPECT_TRUE(is_deferred(net->first->weight));
  materialize(*net);
  expect_loaded(net, weights);
}

TEST(LoadWeights, WhatTheFileLacksKeepsItsOwnInitialiser) {
  const TemporaryFolder folder;
  Net expected = lazy_net();
  materialize(*expected);
  Weights weights = weights_for(expected);
  weights.erase("low"); // shares its storage with one that is there
  weights.erase("half.weight");
  write_weights(folder / "model.safetensors", weights);
  LoadWeightsOptions options;
  options.may_be_missing = {"low", "half."};
  Net net = lazy_net();
  const auto report = load_weights(*net, folder.path(), options);
  auto missing = report.missing;
  std::sort(missing.begin(), missing.end());
  EXPECT_EQ(missing, (std::vector<std::string>{"half.weight", "low"}));
  materialize(*net);
  expect_loaded(net, weights);
  EXPECT_TRUE(torch::equal(net->low, expected->low));
  EXPECT_TRUE(torch::equal(net->half->weight, expected->half->weight));
}

TEST(LoadWeights, ATiedWeightGoesByAnyOfItsNames) {
  const TemporaryFolder folder;
  Net net;
  Weights weights = weights_for(net);
  auto node = weights.extract("first.weight");
  node.key() = "tied";
  weights.insert(std::move(node));
  write_weights(folder / "model.safetensors", weights);
  load_weights(*net, folder.path());
  expect_loaded(net, weights);
}

TEST(LoadWeights, SeveralFilesAndOtherNames) {
  const TemporaryFolder folder;
  Net net = lazy_net();
  const Weights weights = weights_for(net);
  Weights parts[2];
  std::string index;
  for (const auto& [name, tensor] : weights) {
    const size_t part = name.size() % 2;
    parts[part].emplace("model." + name, tensor);
    index += (index.empty() ? "" : ", ") + ("\"model." + name + "\": \"") +
             (part == 0 ? "a" : "b") + ".safetensors\"";
  }
  parts[0].emplace("head", torch::zeros({3}));
  index += R"(, "head": "a.safetensors")";
  write_weights(folder / "a.safetensors", parts[0]);
  write_weights(folder / "b.safetensors", parts[1]);
  const fs::path path = folder / "model.safetensors.index.json";
  runtime::write_file_atomically(path, "{\"weight_map\": {" + index + "}}");
  LoadWeightsOptions options;
  options.rename = [](std::string_view name) {
    return name == "head" ? "" : std::string(name.substr(6));
  };
  for (const fs::path& given : {folder.path(), path}) {
    Net other = lazy_net();
    const auto report = load_weights(*other, given, options);
    EXPECT_EQ(report.left_out, std::vector<std::string>{"head"});
    materialize(*other);
    expect_loaded(other, weights);
  }
}

TEST(LoadWeights, NamesAllThatDoesNotFit) {
  const TemporaryFolder folder;
  Net net;
  const at::Tensor before = net->first->bias.detach().clone();
  Weights weights = weights_for(net);
  auto node = weights.extract("first.weight");
  node.key() = "frist.weight";
  weights.insert(std::move(node));
  weights["low"] = torch::zeros({5'000});
  weights["high"] = torch::zeros({5'001}, torch::kLong);
  weights["norm.num_batches_tracked"] = torch::zeros({});
  write_weights(folder / "model.safetensors", weights);
  expect_error(
      [&] { load_weights(*net, folder.path()); },
      {"unexpected: 'frist.weight'; the nearest is 'first.weight'",
       "missing: 'tied'; the nearest is 'frist.weight'",
       "shape of 'low': [5000], but the model's is [5001]",
       "dtype of 'high': I64",
       "dtype of 'norm.num_batches_tracked': F32"});
  EXPECT_TRUE(torch::equal(net->first->bias, before));
}

TEST(LoadWeights, BuffersThatFilesLackAreNamed) {
  const TemporaryFolder folder;
  Net net;
  const at::Tensor before = net->first->bias.detach().clone();
  Weights weights = weights_for(net);
  weights.erase("norm.running_mean");
  write_weights(folder / "model.safetensors", weights);
  expect_error(
      [&] { load_weights(*net, folder.path()); },
      {"missing: buffer 'norm.running_mean'"});
  EXPECT_TRUE(torch::equal(net->first->bias, before));
  for (const bool by_prefix : {true, false}) {
    LoadWeightsOptions options;
    (by_prefix ? options.may_be_missing
               : options.except) = {"norm.running_mean"};
    const auto report = load_weights(*net, folder.path(), options);
    expect_loaded(net, weights);
    EXPECT_EQ(
        by_prefix ? report.missing_buffers : report.not_chosen,
        std::vector<std::string>{"norm.running_mean"});
  }
}

TEST(LoadWeights, NotStrictTakesWhatThereIs) {
  const TemporaryFolder folder;
  Net net;
  Weights weights = weights_for(net);
  weights.erase("first.weight");
  weights.erase("norm.running_mean");
  write_weights(folder / "model.safetensors", weights);
  LoadWeightsOptions options;
  options.strict = false;
  Weights more = weights;
  more["more"] = torch::zeros({2});
  write_weights(folder / "model.safetensors", more);
  const auto report = load_weights(*net, folder.path(), options);
  expect_loaded(net, weights);
  EXPECT_EQ(report.missing, std::vector<std::string>{"tied"});
  EXPECT_EQ(report.unexpected, std::vector<std::string>{"more"});
  EXPECT_EQ(
      report.missing_buffers, std::vector<std::string>{"norm.running_mean"});
  // Another shape is reported as well; another kind of numbers is refused.
  const at::Tensor low = net->low.detach().clone();
  more["low"] = torch::zeros({2});
  write_weights(folder / "model.safetensors", more);
  const auto shapes = load_weights(*net, folder.path(), options).other_shapes;
  ASSERT_EQ(shapes.size(), 1u);
  EXPECT_EQ(shapes[0].name, "low");
  EXPECT_EQ(shapes[0].found, std::vector<int64_t>{2});
  EXPECT_TRUE(net->low.equal(low));
  more["low"] = torch::zeros({5'001}, torch::kLong);
  write_weights(folder / "model.safetensors", more);
  expect_error(
      [&] { load_weights(*net, folder.path(), options); }, {"dtype of 'low'"});
}

TEST(LoadWeights, ByRulesAndPatterns) {
  const TemporaryFolder folder;
  Net net;
  const at::Tensor before = net->low.detach().clone();
  Weights weights = weights_for(net);
  Weights renamed;
  for (const auto& [name, tensor] : weights) {
    renamed.emplace(name == "low" ? name : "old." + name, tensor);
  }
  write_weights(folder / "model.safetensors", renamed);
  LoadWeightsOptions options;
  options.rename_rules = {{"low", ""}, {"old\\.(.*)", "$1"}};
  options.except = {"low"};
  const auto report = load_weights(*net, folder.path(), options);
  EXPECT_EQ(report.not_chosen, std::vector<std::string>{"low"});
  EXPECT_EQ(report.left_out, std::vector<std::string>{"low"});
  EXPECT_EQ(report.loaded.size() + 1, weights.size());
  EXPECT_TRUE(net->low.equal(before));
  weights.erase("low");
  expect_loaded(net, weights);
  net->low.detach().zero_();
  options.except = {};
  options.only = {"model\\.lower"};
  options.other_names = {{"low", {"model.lower"}}};
  options.rename_rules = {{"low", "low"}, {"old\\.(.*)", "$1"}};
  EXPECT_EQ(load_weights(*net, folder.path(), options).loaded.size(), 1U);
  EXPECT_FALSE(net->low.equal(at::zeros_like(net->low)));
  options.only = {"model\\.lwoer"};
  expect_error(
      [&] { load_weights(*net, folder.path(), options); },
      {"`only` or `except`", "'model.lower'"});
  options.rename_rules = {{"low", ""}, {"old\\.(.*)", "$1"}};
  options.only = {"lwo"};
  expect_error(
      [&] { load_weights(*net, folder.path(), options); },
      {"'lwo'", "`only` or `except`", "matches none of the model", "low"});
  // A rule that gives other names, and one that matches no name in the files.
  options = {};
  options.rename_rules = {{"low", ""}, {"old\\.(.*)", "odl.$1"}};
  options.may_be_missing = {"low"};
  expect_error(
      [&] { load_weights(*net, folder.path(), options); },
      {"unexpected: 'old.first.bias', renamed to 'odl.first.bias'",
       "missing: 'first.bias'; the nearest is 'odl.first.bias'"});
  options.strict = false;
  options.rename_rules = {{"low", ""}, {"odl\\.(.*)", "$1"}};
  expect_error(
      [&] { load_weights(*net, folder.path(), options); },
      {"rename_rules: 'odl\\.(.*)' matches no whole name", "old."});
}

TEST(LoadWeights, FilesThatAreNotThere) {
  const TemporaryFolder folder;
  Net net;
  expect_error(
      [&] { load_weights(*net, folder.path()); }, {"model.safetensors"});
  expect_error(
      [&] { load_weights(*net, folder / "no.safetensors"); },
      {"no.safetensors"});
  const fs::path index = folder / "model.safetensors.index.json";
  runtime::write_file_atomically(
      index, R"({"weight_map": {"w": "../x.safetensors"}})");
  expect_error(
      [&] { load_weights(*net, folder.path()); }, {"'w'", "../x.safetensors"});
  runtime::write_file_atomically(index, "{}");
  expect_error([&] { load_weights(*net, index); }, {"names no tensors"});
}

// A fused matrix, transposed, as Conv1D keeps query, key and value: parts of it
// go into parameters of their own, over ranks too, and are converted.
TEST(LoadWeights, TakesTensorsOutOfOthers) {
  const TemporaryFolder folder;
  const at::Tensor fused =
      torch::arange(40 * 90, torch::kBFloat16).view({40, 90});
  write_weights(
      folder / "model.safetensors",
      {{"fused", fused}, {"unused", torch::ones({2})}});
  LoadWeightsOptions options;
  const auto column = [](const char* name, int64_t begin, int64_t size) {
    return MappedWeight{name, {size, 40}, {40, 90}, begin, true};
  };
  options.map =
      [&](std::string_view name) -> std::optional<std::vector<MappedWeight>> {
    if (name == "fused") {
      return std::vector{column("a", 0, 30), column("b", 30, 60)};
    }
    return std::vector<MappedWeight>();
  };
  const auto make = [](int64_t rows_of_b) {
    auto module = std::make_shared<torch::nn::Module>();
    module->register_parameter("a", torch::zeros({30, 40}));
    module->register_parameter("b", torch::zeros({rows_of_b, 40}));
    return module;
  };
  const auto check = [&](const torch::nn::Module& module) {
    const auto parameters = module.named_parameters();
    const at::Tensor all =
        torch::cat({parameters["a"], parameters["b"]}).detach();
    EXPECT_TRUE(all.equal(fused.t().to(torch::kFloat)));
  };
  tests::run_ranks(2, [&](World& world) {
    const auto sharded = make(60);
    MemoryLedger ledger;
    PagerOptions pager_options;
    pager_options.groups.min_group_numel = 0;
    Pager pager(world, *sharded, pager_options, ledger);
    Communicator alone("load"); // every rank has all tensors
    load_sharded_weights(
        pager, *sharded, WeightFiles::open(folder.path()), options, alone);
    pager.unwrap();
    check(*sharded);
  });
  const auto full = make(60);
  const LoadWeightsReport report = load_weights(*full, folder.path(), options);
  EXPECT_EQ(report.left_out, std::vector<std::string>{"unused"});
  check(*full);
  const auto later = lazy([&] { return make(60); }, all_lazy());
  load_weights(*later, folder.path(), options);
  materialize(*later);
  check(*later);

  expect_error(
      [&] { load_weights(*make(59), folder.path(), options); },
      {"'fused'", "'b'", "[60, 40]", "[59, 40]"});
  options.map = [&](std::string_view) {
    return std::optional(std::vector{column("c", 0, 30)});
  };
  expect_error(
      [&] { load_weights(*make(60), folder.path(), options); }, {"'c'"});
  options.map = [&](std::string_view) {
    return std::optional(std::vector{column("a", 70, 30), column("b", 0, 60)});
  };
  expect_error(
      [&] { load_weights(*make(60), folder.path(), options); },
      {"'fused'", "'a'", "outside"});
  options.map =
      [&](std::string_view) -> std::optional<std::vector<MappedWeight>> {
    return std::nullopt;
  };
  expect_error(
      [&] { load_weights(*make(60), folder.path(), options); },
      {"unexpected: 'fused'", "missing: 'a'"});
}

} // namespace tessera::sharding::load_weights_test
