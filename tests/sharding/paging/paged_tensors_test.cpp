// SPDX-License-Identifier: Apache-2.0
// The mechanism in LibTorch: storages that come and go, the key, tokens, and
// which operators touch data.
#include "support/expect_error.h"
#include "tessera/sharding/interception/gradient_token.h"
#include "tessera/sharding/interception/operator_traits.h"
#include "tessera/sharding/interception/page_faults.h"
#include "tessera/sharding/interception/page_key.h"
#include "tessera/sharding/pages/page_memory.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace tessera::sharding::paged_tensors_test {

namespace {

/// Notes what it is asked for.
struct Recorder : PageFaultHandler {
  void on_access(c10::ArrayRef<PageAccess> accesses, const char* op_name)
      override {
    for (const auto& access : accesses) {
      faults.push_back(
          std::string(op_name) + (access.is_write ? " writes " : " reads ") +
          access.storage->parameter_name());
    }
    if (bring_in) {
      bring_in();
    }
  }
  void on_token_add(size_t parameter, const at::Tensor& gradient) override {
    added.emplace_back(parameter, gradient.clone());
  }
  void on_token_zero(size_t parameter) override {
    zeroed.push_back(parameter);
  }

  std::vector<std::string> faults;
  std::function<void()> bring_in;
  std::vector<std::pair<size_t, at::Tensor>> added;
  std::vector<size_t> zeroed;
};

/// Message of a c10::Error, without its stack.
template <typename Action>
std::string torch_error(Action&& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

OperatorKind kind_by_name(const char* name, const char* overload = "") {
  return kind_of(
      c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

/// One group over a weight [2, 3] and a bias [3], as rank 0 of `world_size`.
struct OneGroup {
  explicit OneGroup(int world_size) {
    ensure_page_key_registered();
    PageSpec spec;
    spec.name = "layer";
    spec.parameters.push_back(
        {{full_spec(
              {"layer.weight"}, weight.sizes().vec(), weight.scalar_type()),
          weight}});
    spec.parameters.push_back(
        {{full_spec({"layer.bias"}, bias.sizes().vec(), bias.scalar_type()),
          bias}});
    group = std::make_unique<PageMemory>(
        lay_out(spec, 0, 0, {}, shard_mesh(0, world_size, 0)),
        recorder,
        ledger);
  }
  at::Tensor weight = torch::arange(6.0).reshape({2, 3});
  at::Tensor bias = torch::arange(3.0) + 10;
  MemoryLedger ledger;
  Recorder recorder;
  std::unique_ptr<PageMemory> group;
};

} // namespace

TEST(OperatorTraits, ViewsAndQueriesTouchNoData) {
  for (const char* name :
       {"aten::detach",
        "aten::t",
        "aten::view",
        "aten::permute",
        "aten::unsqueeze",
        "aten::expand",
        "aten::alias",
        "aten::as_strided",
        "aten::requires_grad_",
        "aten::is_same_size"}) {
    EXPECT_EQ(kind_by_name(name), OperatorKind::kMetadata) << name;
  }
  EXPECT_EQ(kind_by_name("aten::slice", "Tensor"), OperatorKind::kMetadata);
  EXPECT_EQ(kind_by_name("aten::select", "int"), OperatorKind::kMetadata);
  EXPECT_EQ(kind_by_name("aten::transpose", "int"), OperatorKind::kMetadata);
  EXPECT_EQ(kind_by_name("aten::zeros_like"), OperatorKind::kMetadata);
}

TEST(OperatorTraits, ArithmeticCopiesAndOutVariantsDo) {
  for (const char* name :
       {"aten::mm",
        "aten::linear",
        "aten::clone",
        "aten::contiguous",
        "aten::reshape",
        "aten::copy_",
        "aten::relu_"}) {
    EXPECT_EQ(kind_by_name(name), OperatorKind::kReadsData) << name;
  }
  EXPECT_EQ(kind_by_name("aten::zeros_like", "out"), OperatorKind::kReadsData);
  EXPECT_EQ(kind_by_name("aten::add", "out"), OperatorKind::kReadsData);
  EXPECT_EQ(kind_by_name("aten::add_", "Tensor"), OperatorKind::kInplaceAdd);
  EXPECT_EQ(kind_by_name("aten::add", "Tensor"), OperatorKind::kAdd);
  EXPECT_EQ(kind_by_name("aten::zero_"), OperatorKind::kInplaceZero);
}

TEST(PagedStorage, DetachedThrowsTheNameAndKeepsItsSize) {
  OneGroup one(2);
  const auto& storage = one.weight.storage();
  EXPECT_EQ(one.group->residency(), Residency::kSharded);
  EXPECT_EQ(storage.nbytes(), 6 * sizeof(float));
  EXPECT_EQ(one.weight.sizes(), (c10::IntArrayRef{2, 3}));
  const auto message = torch_error([&] { (void)one.weight.data_ptr<float>(); });
  EXPECT_TRUE(contains(message, "parameter 'layer.weight' is sharded"))
      << message;
  EXPECT_TRUE(contains(message, "gather()")) << message;
  auto* page = PagedStorage::of(storage.unsafeGetStorageImpl());
  ASSERT_NE(page, nullptr);
  EXPECT_TRUE(page->is_intact());
  EXPECT_EQ(page->nbytes(), 24);
  EXPECT_EQ(page->page().number, one.group->number());
  EXPECT_EQ(
      PagedStorage::of(torch::ones({2}).storage().unsafeGetStorageImpl()),
      nullptr);
}

TEST(PagedStorage, ViewsFollowAttachAndDetach) {
  OneGroup one(1);
  const auto view = one.weight.t()[2];
  one.group->attach_shard();
  EXPECT_EQ(one.weight.data_ptr<float>()[5], 5);
  EXPECT_EQ(view.data_ptr<float>()[0], 2);
  EXPECT_EQ(one.bias.data_ptr<float>()[1], 11);
  one.group->reshard({});
  EXPECT_NE(
      torch_error([&] { (void)view.data_ptr<float>(); }), "nothing was thrown");
}

TEST(PagedStorage, ReplacedStorageIsFoundAndGoesUnharmed) {
  OneGroup one(2);
  one.group->check_identity();
  one.bias.set_data(torch::ones({3}));
  expect_error(
      [&] { one.group->check_identity(); },
      {"'layer.bias'", "replaced", "unwrap()"});
  one.group.reset();
  EXPECT_EQ(one.bias.sum().item<float>(), 3);
  const auto message = torch_error([&] { (void)one.weight.data_ptr<float>(); });
  EXPECT_TRUE(contains(message, "gone")) << message;
}

TEST(PageMemory, RestoreGivesEachStorageMemoryOfItsOwn) {
  OneGroup one(1);
  one.group->attach_shard();
  one.group->restore(one.group->full(), {});
  one.group.reset();
  EXPECT_FALSE(has_page_key(one.weight));
  EXPECT_TRUE(torch::equal(one.weight, torch::arange(6.0).reshape({2, 3})));
  EXPECT_TRUE(torch::equal(one.bias, torch::arange(3.0) + 10));
  one.weight.add_(1);
  EXPECT_EQ(one.weight[0][0].item<float>(), 1);
}

TEST(PageMemory, ShardsOfAllRanksAreTheWhole) {
  for (int size = 1; size <= 5; ++size) {
    std::vector<at::Tensor> shards;
    for (int rank = 0; rank < size; ++rank) {
      Recorder recorder;
      MemoryLedger ledger;
      PageSpec spec;
      const auto weight = torch::arange(37.0);
      const auto bias = torch::arange(5.0) + 100;
      spec.parameters.push_back(
          {{full_spec({"w"}, weight.sizes().vec(), weight.scalar_type()),
            weight}});
      spec.parameters.push_back(
          {{full_spec({"b"}, bias.sizes().vec(), bias.scalar_type()), bias}});
      const PageMemory group(
          lay_out(spec, 0, 0, {}, shard_mesh(rank, size, 0)), recorder, ledger);
      shards.push_back(group.shard().load().clone());
      if (rank + 1 == size) {
        const auto full = torch::cat(shards);
        for (const auto& parameter : group.parameters()) {
          const auto got =
              full.narrow(0, parameter.span.begin, parameter.span.numel);
          EXPECT_TRUE(torch::equal(
              got,
              parameter.record.name() == "w" ? torch::arange(37.0)
                                             : torch::arange(5.0) + 100))
              << size;
        }
      }
    }
  }
}

TEST(PageKey, OperatorsFaultViewsDoNot) {
  OneGroup one(1);
  one.recorder.bring_in = [&] {
    if (one.group->residency() == Residency::kSharded) {
      one.group->attach_shard();
    }
  };
  const auto view = one.weight.detach().t().narrow(0, 0, 2).unsqueeze(0);
  EXPECT_TRUE(has_page_key(view));
  EXPECT_TRUE(one.recorder.faults.empty());
  EXPECT_EQ(view.sum().item<float>(), 0 + 1 + 3 + 4);
  EXPECT_EQ(
      one.recorder.faults,
      (std::vector<std::string>{"aten::sum reads layer.weight"}));
  one.recorder.faults.clear();
  const auto result = torch::addmm(one.bias, torch::ones({1, 2}), one.weight);
  EXPECT_FALSE(has_page_key(result));
  EXPECT_EQ(
      one.recorder.faults,
      (std::vector<std::string>{
          "aten::addmm reads layer.bias", "aten::addmm reads layer.weight"}));
}

TEST(PageKey, WritesAreToldFromReads) {
  OneGroup one(1);
  one.recorder.bring_in = [&] {
    if (one.group->residency() == Residency::kSharded) {
      one.group->attach_shard();
    }
  };
  const auto last = [&] { return one.recorder.faults.back(); };
  one.bias.mul_(2);
  EXPECT_EQ(last(), "aten::mul_ writes layer.bias");
  one.bias.data().fill_(1);
  EXPECT_EQ(last(), "aten::fill_ writes layer.bias");
  one.weight[1].zero_();
  EXPECT_EQ(last(), "aten::zero_ writes layer.weight");
  torch::add_out(one.bias, torch::ones({3}), torch::ones({3}));
  EXPECT_EQ(last(), "aten::add writes layer.bias");
  at::ones_like_out(one.bias, torch::ones({3}));
  EXPECT_EQ(last(), "aten::ones_like writes layer.bias");
  std::vector<at::Tensor> list{torch::ones({3}), one.bias};
  torch::_foreach_add_(list, 1);
  EXPECT_EQ(last(), "aten::_foreach_add_ writes layer.bias");
  (void)torch::cat({torch::ones({3}), one.bias});
  EXPECT_EQ(last(), "aten::cat reads layer.bias");
  (void)torch::ones({9}).index({one.bias.to(torch::kLong)});
  EXPECT_EQ(one.recorder.faults.back(), "aten::to reads layer.bias");
}

TEST(GradientToken, AddsAndZerosAreIntercepted) {
  ensure_page_key_registered();
  Recorder recorder;
  const auto parameter = torch::ones({2, 3});
  GradientTokenInfo info{&recorder, 4, "layer.weight"};
  const auto token = make_gradient_token(parameter, info);
  EXPECT_EQ(token.sizes(), parameter.sizes());
  EXPECT_EQ(gradient_token_info(token), &info);
  EXPECT_EQ(gradient_token_info(token.detach()), &info);
  EXPECT_EQ(gradient_token_info(parameter), nullptr);
  token.add_(torch::ones({2, 3}));
  token.add_(torch::ones({2, 3}), -0.5);
  ASSERT_EQ(recorder.added.size(), 2);
  EXPECT_EQ(recorder.added[0].first, 4);
  EXPECT_EQ(recorder.added[0].second.sum().item<float>(), 6);
  EXPECT_EQ(recorder.added[1].second.sum().item<float>(), -3);
  token.zero_();
  token.detach().zero_();
  EXPECT_EQ(recorder.zeroed, (std::vector<size_t>{4, 4}));
  retire_gradient_token(token);
}

TEST(GradientToken, EverythingElseNamesTheParameter) {
  ensure_page_key_registered();
  Recorder recorder;
  GradientTokenInfo info{&recorder, 0, "layer.weight"};
  const auto token = make_gradient_token(torch::ones({2, 3}), info);
  const std::initializer_list<const char*> parts{
      "gradient of 'layer.weight'", "engine.grad()"};
  expect_error([&] { (void)token.norm(); }, parts);
  expect_error([&] { (void)(token + 1); }, parts);
  expect_error([&] { (void)(token + token.new_ones({2, 3})); }, parts);
  expect_error([&] { (void)(torch::ones({2, 3}) + token); }, parts);
  expect_error([&] { token.add_(1); }, parts);
  expect_error([&] { token.copy_(torch::ones({2, 3})); }, parts);
  expect_error([&] { torch::ones({2, 3}).add_(token); }, parts);
  expect_error([&] { (void)torch::cat({token, token}); }, parts);
  EXPECT_TRUE(contains(
      torch_error([&] { (void)token.data_ptr(); }),
      "gradient of 'layer.weight'"));
  EXPECT_TRUE(recorder.added.empty());
  retire_gradient_token(token);
  EXPECT_TRUE(contains(torch_error([&] { (void)token.norm(); }), "gone"));
}

} // namespace tessera::sharding::paged_tensors_test
