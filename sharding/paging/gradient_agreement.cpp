// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/paging/gradient_agreement.h"

#include "tessera/runtime/core/error.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace tessera::sharding {

void GradientAgreement::settle(const RankIntent& intent) {
  context_.pages.check_identity();
  RankIntent stated = intent;
  stated.is_settled = is_settled();
  const bool all_settled = reducer_.agree(stated);
  reducer_.finish();
  if (!all_settled) {
    collect_all_pending();
  }
  const TransferWaits::Scope waits(context_.waits);
  if (!all_settled) {
    adopt(reduce_collected(/*all=*/true));
  }
  reducer_.finish_storing();
  reducer_.wait_for_lane();
}

at::Tensor GradientAgreement::flags(bool all) const {
  const PageTable& pages = context_.pages;
  const size_t parameters = pages.entries().size();
  const at::Tensor flags =
      at::zeros({static_cast<int64_t>(pages.size() + parameters)}, at::kByte);
  auto* flag = flags.mutable_data_ptr<uint8_t>();
  for (size_t g = 0; g < pages.size(); ++g) {
    const GradientBucket* bucket = pages[g].gradients.get();
    const bool due =
        bucket != nullptr && (all || !pages[g].spec().keeps_full_gradients);
    flag[g] = due && bucket->any_arrived() ? 1 : 0;
  }
  for (size_t p = 0; p < parameters; ++p) {
    const GradientBucket* bucket = pages.bucket_of(p);
    flag[pages.size() + p] =
        bucket != nullptr && bucket->got_gradient(pages.entries()[p].position)
            ? 1
            : 0;
  }
  return flags;
}

bool GradientAgreement::is_settled() const {
  if (!settled_flags_.defined()) {
    return false;
  }
  for (const auto& page : context_.pages) {
    GradientBucket* bucket = page->gradients.get();
    if (bucket == nullptr) {
      continue;
    }
    bucket->refresh();
    bool changed = bucket->is_open();
    for (size_t i = 0; i < page->parameters().size(); ++i) {
      changed = changed || bucket->is_pending(i);
    }
    if (changed) {
      return false;
    }
  }
  return at::equal(settled_flags_, flags(/*all=*/true));
}

void GradientAgreement::collect_all_pending() {
  for (const auto& page : context_.pages) {
    if (page->gradients) {
      reducer_.collect_pending(*page);
      continue;
    }
    for (const auto& frozen : page->parameters()) {
      TESSERA_CHECK(
          !frozen.record.tensor.grad().defined(),
          "parameter '{}' was frozen when the module was wrapped, but has a gradient now. Set requires_grad before wrap(); to train it from now on: save(), unwrap(), set requires_grad, wrap() and load().",
          frozen.record.name());
    }
  }
}

at::Tensor GradientAgreement::reduce_collected(bool all) {
  reducer_.finish();
  const at::Tensor flags = this->flags(all);
  context_.ranks->control()
      .all_reduce_max(flags, "agreement on gradients")
      .wait(context_.ranks->watch_failures());
  const auto* due = flags.const_data_ptr<uint8_t>();
  for (size_t g = 0; g < context_.pages.size(); ++g) {
    if (due[g] != 0) {
      reducer_.finish();
      reducer_.begin(context_.pages[g]);
    } else {
      reducer_.close_if_empty(context_.pages[g]);
    }
  }
  reducer_.finish();
  reducer_.finish_storing();
  return flags;
}

void GradientAgreement::adopt(const at::Tensor& flags) {
  const PageTable& pages = context_.pages;
  auto* flag = flags.mutable_data_ptr<uint8_t>();
  std::fill_n(flag, pages.size(), uint8_t{0}); // these are reduced now
  for (size_t p = 0; p < pages.entries().size(); ++p) {
    if (GradientBucket* bucket = pages.bucket_of(p)) {
      bucket->set_has_gradient(
          pages.entries()[p].position, flag[pages.size() + p] != 0);
    }
  }
  settled_flags_ = flags;
  ++context_.statistics.gradient_agreements;
}

} // namespace tessera::sharding
