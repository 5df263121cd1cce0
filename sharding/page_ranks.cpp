// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/page_ranks.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/deferred_init.h"
#include "tessera/sharding/plan_cursor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <functional>
#include <sstream>
#include <unordered_set>
#include <utility>

namespace tessera::sharding {

namespace {

std::string signature_of(const std::vector<PageSpec>& pages) {
  std::ostringstream text;
  for (const PageSpec& page : pages) {
    text << page.name << ":";
    for (const auto& [record, index, span] : page.parameters) {
      text << record.name() << record.tensor.sizes()
           << record.tensor.scalar_type() << record.dtype
           << record.tensor.requires_grad();
      if (const auto* deferred =
              deferred_init(*record.tensor.storage().unsafeGetStorageImpl())) {
        text << "deferred" << deferred->seeds.size();
      }
      text << ";";
    }
  }
  return text.str();
}

void broadcast_seeds(PageRanks& ranks, const torch::nn::Module& module) {
  std::vector<std::shared_ptr<uint64_t>> seeds;
  for (const at::Tensor& parameter : module.parameters()) {
    const auto* deferred =
        is_deferred(parameter)
            ? deferred_init(*parameter.storage().unsafeGetStorageImpl())
            : nullptr;
    for (size_t i = 0; deferred != nullptr && i < deferred->seeds.size(); ++i) {
      if (std::find(seeds.begin(), seeds.end(), deferred->seeds[i]) ==
          seeds.end()) {
        seeds.push_back(deferred->seeds[i]);
      }
    }
  }
  if (seeds.empty()) {
    return;
  }
  const at::Tensor values =
      at::empty({static_cast<int64_t>(seeds.size())}, at::kLong);
  for (size_t i = 0; i < seeds.size(); ++i) {
    values[static_cast<int64_t>(i)] = static_cast<int64_t>(*seeds[i]);
  }
  ranks.control()
      .broadcast(values, 0, "broadcast of the seeds of lazy parameters")
      .wait();
  for (size_t i = 0; i < seeds.size(); ++i) {
    *seeds[i] =
        static_cast<uint64_t>(values[static_cast<int64_t>(i)].item<int64_t>());
  }
}

} // namespace

PageRanks::PageRanks(
    World& world,
    const ShardMesh& mesh,
    const std::vector<PageSpec>& pages)
    : mesh_(mesh),
      agreement_(
          world,
          "engine",
          [this](const RankIntent& intent) { return describe(intent); }),
      shards_(world.new_communicator(
          "engine shards",
          pages.front().device,
          mesh.shard_group)),
      reductions_(
          pages.front().device.is_cpu() ? nullptr
                                        : world.new_communicator(
                                              "engine reductions",
                                              pages.front().device,
                                              mesh.shard_group)),
      replicas_(world.new_communicator(
          "engine replicas",
          pages.front().device,
          mesh.replicate_group)) {
  for (const PageSpec& page : pages) {
    names_.pages.push_back(page.name);
    for (const PagedParameter& parameter : page.parameters) {
      names_.parameters.push_back(parameter.record.name());
    }
  }
  check_same(pages);
}

void PageRanks::check_same(const std::vector<PageSpec>& pages) {
  if (size() == 1) {
    return;
  }
  const auto hash =
      static_cast<int64_t>(std::hash<std::string>{}(signature_of(pages)));
  const at::Tensor mine = at::tensor({hash}, at::kLong);
  const at::Tensor all = at::empty({size()}, at::kLong);
  control()
      .all_gather(all, mine, "comparison of the module across the ranks")
      .wait();
  for (int r = 1; r < size(); ++r) {
    TESSERA_CHECK(
        all[r].item<int64_t>() == all[0].item<int64_t>(),
        "wrap: the module on rank {} differs from rank 0's in the names, shapes, dtypes or requires_grad of its parameters, or in whether they are lazy. Build the same module on every rank.",
        r);
  }
}

std::string PageRanks::describe(const RankIntent& intent) const {
  const auto group = [&] {
    return "group '" + names_.pages[static_cast<size_t>(intent.group)] + "'";
  };
  const auto name = [&] {
    return "parameter '" +
           names_.parameters[static_cast<size_t>(intent.parameter)] + "'";
  };
  switch (intent.kind) {
    case RankIntent::Kind::kUnshard:
      return "reads " + name() + " (" + group() + ")";
    case RankIntent::Kind::kReduce:
      return "reduces the gradients of " + group();
    case RankIntent::Kind::kBackwardEnd:
      return "has ended its backward";
    case RankIntent::Kind::kGatherScope:
      return "gathers " + group();
    case RankIntent::Kind::kForwardPhase:
      return static_cast<PlanPhase>(intent.group) == PlanPhase::kTrain
                 ? "begins the forward of a training step"
                 : "begins a forward without gradients";
    case RankIntent::Kind::kClip:
      return "clips the gradients";
    case RankIntent::Kind::kReadGradient:
      return "reads the gradient of " + name();
    case RankIntent::Kind::kAddGradient:
      return "adds to the gradient of " + name();
    case RankIntent::Kind::kStep:
      return "applies the gradients";
    case RankIntent::Kind::kSum:
      return "adds up " + std::to_string(intent.group) + " numbers";
    case RankIntent::Kind::kUnwrap:
      return "unwraps the module";
  }
  return "does something unknown";
}

void PageRanks::abandon(const std::string& reason) noexcept {
  agreement_.report(reason);
  for (Communicator* communicator :
       {shards_.get(), reductions_.get(), replicas_.get()}) {
    if (communicator != nullptr) {
      communicator->abort();
    }
  }
}

void PageRanks::or_abandon(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    abandon(error.what());
    throw;
  }
}

void PageRanks::max(const at::Tensor& values) {
  control()
      .all_reduce_max(values, "maximum over the ranks")
      .wait(watch_failures());
}

void PageRanks::sum_over_shards(const at::Tensor& values) {
  if (!values.is_cpu()) {
    shards_->all_reduce_sum(values, "sum over the shards")
        .wait(watch_failures());
    return;
  }
  control().all_reduce_sum(values, "sum over the ranks").wait(watch_failures());
  if (mesh_.replicas > 1) {
    values.div_(mesh_.replicas); // every replica has been added
  }
}

void PageRanks::all_gather_shards(
    const at::Tensor& whole,
    const at::Tensor& shard,
    const std::string& what) {
  shards_->all_gather(whole, shard, what).wait(watch_failures());
}

void broadcast_module(
    PageRanks& ranks,
    const torch::nn::Module& module,
    const std::vector<PageSpec>& pages) {
  const c10::NoGradGuard no_grad;
  broadcast_seeds(ranks, module);
  std::unordered_set<const c10::StorageImpl*> done;
  const auto send = [&](const at::Tensor& tensor, const std::string& name) {
    const c10::Storage& storage = tensor.storage();
    if (storage.nbytes() == 0 || is_deferred(tensor) ||
        !done.insert(storage.unsafeGetStorageImpl()).second) {
      return;
    }
    const auto bytes = at::from_blob(
        storage.mutable_data(),
        {static_cast<int64_t>(storage.nbytes())},
        at::TensorOptions().dtype(at::kByte).device(tensor.device()));
    const std::string what = "broadcast of '" + name + "'";
    // A buffer may be on the CPU although the parameters are not.
    if (tensor.is_cpu()) {
      ranks.control().broadcast(bytes, 0, what).wait();
      return;
    }
    // First to the ranks of other replicas that correspond to rank 0, then from
    // each of them to its replica.
    if (ranks.mesh().shard_rank == 0) {
      ranks.replicas().broadcast(bytes, 0, what).wait();
    }
    ranks.shards().broadcast(bytes, 0, what).wait();
  };
  for (const PageSpec& page : pages) {
    for (const PagedParameter& parameter : page.parameters) {
      send(parameter.record.tensor, parameter.record.name());
    }
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined() && item.value().has_storage()) {
      send(item.value(), item.key());
    }
  }
}

} // namespace tessera::sharding
