// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/plans/rank_agreement.h"

#include "tessera/runtime/comm/store_text.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/peer_failure.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

namespace tessera::sharding {

namespace {

constexpr int64_t kIntentFields = 4;

} // namespace

RankAgreement::RankAgreement(
    World& world,
    const std::string& name,
    std::vector<int> ranks,
    std::function<std::string(const RankIntent&)> describe)
    : store_(world.store()),
      name_(world.unique_name(name)),
      ranks_(std::move(ranks)),
      control_(world.join_group(name + " control", name_, at::kCPU, ranks_)),
      describe_(std::move(describe)) {}

std::string RankAgreement::key(const std::string& suffix) const {
  return "agreement/" + name_ + "/" + std::to_string(ranks_.front()) + "/" +
         suffix;
}

std::string RankAgreement::key_of_failure() const {
  return "agreement/" + name_ + "/failed";
}

std::string RankAgreement::key_of_note(const std::string& name) const {
  return "agreement/" + name_ + "/notes/" + name;
}

std::string RankAgreement::key_of_rank(int rank) const {
  return key("waits/" + std::to_string(rank));
}

std::string RankAgreement::name_of_rank(int rank) const {
  return "rank " + std::to_string(ranks_[static_cast<size_t>(rank)]);
}

std::string RankAgreement::lines_of(
    const std::vector<Account>& accounts) const {
  std::string lines;
  for (const auto& [rank, account] : accounts) {
    lines += "\n  " + name_of_rank(rank) + ": " + account;
  }
  return lines;
}

std::string RankAgreement::disagreement(
    const std::vector<Account>& accounts) const {
  return "the ranks have taken different paths and cannot continue together:" +
         lines_of(accounts) +
         "\nEvery rank must use the same sharded parameters in the same order; "
         "look for control flow that depends on the rank or on its data. "
         "In the first step, which later ones repeat, no rank may skip a "
         "layer.";
}

RankConsent RankAgreement::agree(const RankIntent& self_intent) {
  if (size() == 1) {
    return {std::nullopt, self_intent.is_settled};
  }
  const at::Tensor stated = at::tensor(
      {static_cast<int64_t>(self_intent.kind),
       self_intent.group,
       self_intent.parameter,
       static_cast<int64_t>(self_intent.is_settled)},
      at::kLong);
  const at::Tensor all = at::empty({kIntentFields * size()}, at::kLong);
  control_->all_gather(all, stated, "agreement on " + describe_(self_intent))
      .wait(watch_agreement(self_intent));
  ++agreements_;
  std::vector<RankIntent> intents;
  for (int r = 0; r < size(); ++r) {
    const auto* fields = all.const_data_ptr<int64_t>() + r * kIntentFields;
    intents.push_back(
        {static_cast<RankIntent::Kind>(fields[0]),
         fields[1],
         fields[2],
         fields[3] != 0});
  }
  // It does not matter which of a group's parameters caused it. Of kClip it
  // says whether `group` is a norm's p or a limit.
  const auto same = [](const RankIntent& a, const RankIntent& b) {
    return a.kind == b.kind && a.group == b.group &&
           (a.kind != RankIntent::Kind::kClip || a.parameter == b.parameter);
  };
  if (std::all_of(intents.begin(), intents.end(), [&](const auto& intent) {
        return same(intent, intents[0]);
      })) {
    return {
        std::nullopt,
        std::all_of(intents.begin(), intents.end(), [](const auto& intent) {
          return intent.is_settled;
        })};
  }
  // A rank that did not use some parameter of a group completes it later than
  // the others; joining their reduction early costs nothing.
  std::optional<int64_t> reduction;
  for (const RankIntent& intent : intents) {
    if (intent.kind == RankIntent::Kind::kReduce &&
        (!reduction || intent.group < *reduction)) {
      reduction = intent.group;
    }
  }
  if (reduction) {
    return {reduction, false};
  }
  std::vector<Account> accounts;
  for (size_t r = 0; r < intents.size(); ++r) {
    accounts.emplace_back(static_cast<int>(r), describe_(intents[r]));
  }
  const auto all_are = [&](RankIntent::Kind kind) {
    return std::all_of(
        intents.begin(), intents.end(), [&](const RankIntent& intent) {
          return intent.kind == kind;
        });
  };
  if (all_are(RankIntent::Kind::kStep) || all_are(RankIntent::Kind::kClip)) {
    throw OtherSettingsError(
        "the ranks have other settings for this step:" + lines_of(accounts) +
        "\nEvery rank must set the same learning rate, "
        "hyperparameters and limits of clipping. A schedule that "
        "follows a loss needs the mean of the ranks' losses.");
  }
  if (all_are(RankIntent::Kind::kCompareValues)) {
    throw OtherSettingsError("the ranks have other values of parameters");
  }
  throw Error(disagreement(accounts));
}

WaitCheck RankAgreement::watch_agreement(const RankIntent& self_intent) {
  return [this, self_intent, noted = false]() mutable {
    throw_if_failed();
    if (!std::exchange(noted, true)) {
      store_->set(
          key_of_rank(rank()),
          runtime::to_bytes(
              std::to_string(agreements_) + " " + std::to_string(issued_) +
              " " + describe_(self_intent)));
    }
  };
}

void RankAgreement::throw_if_failed() {
  const std::string failed = key_of_failure();
  if (store_ != nullptr && store_->check({failed})) {
    runtime::blame_peer();
    throw Error(runtime::to_text(store_->get(failed)));
  }
}

WaitCheck RankAgreement::watch_failures() {
  if (store_ == nullptr) {
    return {};
  }
  return [this] { throw_if_failed(); };
}

WaitCheck RankAgreement::watch(
    uint64_t sequence,
    std::function<std::string()> doing) {
  if (size() == 1) {
    return {};
  }
  return [this, sequence, doing = std::move(doing), seen = false]() mutable {
    throw_if_failed();
    std::vector<Account> accounts;
    for (int r = 0; r < size(); ++r) {
      if (r == rank() || !store_->check({key_of_rank(r)})) {
        continue;
      }
      std::istringstream note(runtime::to_text(store_->get(key_of_rank(r))));
      uint64_t agreement = 0;
      uint64_t issued = 0;
      note >> agreement >> issued;
      note.ignore();
      // Older notes are of agreements that were reached since.
      if (agreement == agreements_ && sequence >= issued) {
        std::string peer_text;
        std::getline(note, peer_text);
        accounts.emplace_back(r, peer_text);
      }
    }
    // Other waiting ranks get one more round to state their intent.
    if (!accounts.empty() && std::exchange(seen, true)) {
      accounts.emplace_back(rank(), doing());
      std::sort(accounts.begin(), accounts.end());
      fail(disagreement(accounts));
    }
  };
}

void RankAgreement::report(const std::string& reason) noexcept {
  if (store_ == nullptr) {
    return;
  }
  try {
    store_->set(
        key_of_failure(),
        runtime::to_bytes(name_of_rank(rank()) + " has failed: " + reason));
  } catch (const std::exception&) {
    // The store no longer exists, because the rank that hosts it has ended.
  }
}

void RankAgreement::leave_note(
    const std::string& name,
    const std::string& text) {
  if (store_ != nullptr) {
    store_->set(key_of_note(name), runtime::to_bytes(text));
  }
}

std::optional<std::string> RankAgreement::find_note(
    const std::string& name) const {
  if (store_ == nullptr || !store_->check({key_of_note(name)})) {
    return std::nullopt;
  }
  return runtime::to_text(store_->get(key_of_note(name)));
}

void RankAgreement::fail(const std::string& message) {
  if (store_ != nullptr) { // other pipeline stages may wait, too
    store_->set(key_of_failure(), runtime::to_bytes(message));
  }
  throw Error(message);
}

} // namespace tessera::sharding
