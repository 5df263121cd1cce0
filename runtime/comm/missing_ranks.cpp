// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/missing_ranks.h"

#include "tessera/runtime/comm/group_store.h"
#include "tessera/runtime/comm/store_text.h"

#include <utility>

namespace tessera::runtime {

namespace {

std::string key_of(int rank) {
  return "waiting/" + std::to_string(rank);
}

} // namespace

MissingRanks::MissingRanks(
    c10::intrusive_ptr<c10d::Store> store,
    int rank,
    std::vector<int> job_ranks)
    : store_(std::move(store)), rank_(rank), job_ranks_(std::move(job_ranks)) {}

void MissingRanks::answer(uint64_t number) {
  store_->set(key_of(rank_), to_bytes(std::to_string(number)));
}

MissingRanks::Answers MissingRanks::answers(uint64_t number) const {
  Answers result;
  int first = -1;
  for (int rank = 0; rank < static_cast<int>(job_ranks_.size()); ++rank) {
    const bool waits =
        store_->check({key_of(rank)}) &&
        std::stoull(to_text(store_->get(key_of(rank)))) >= number;
    if (!waits) {
      result.missing.push_back(job_ranks_[static_cast<size_t>(rank)]);
    } else if (first < 0) {
      first = rank;
    }
  }
  result.is_first = first == rank_;
  return result;
}

std::string MissingRanks::end_of_a_rank(
    std::chrono::milliseconds patience) const {
  auto* group = dynamic_cast<GroupStore*>(store_.get());
  return group ? group->end_of_a_rank(patience) : std::string();
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

} // namespace tessera::runtime
