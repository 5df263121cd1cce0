// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StepExecutor` serves the page faults and gradients of a step: as planned
// where there is a plan, else on demand.

#include "tessera/sharding/interception/page_faults.h"
#include "tessera/sharding/paging/gradient_agreement.h"
#include "tessera/sharding/paging/gradient_reducer.h"
#include "tessera/sharding/paging/pager_context.h"
#include "tessera/sharding/paging/step_planner.h"
#include "tessera/sharding/paging/unsharder.h"

#include <cstddef>
#include <optional>
#include <vector>

namespace tessera::sharding {

/// Each touch of pages by an operator, each gradient and each end of a backward
/// is recorded with the StepPlanner. If the plan has it, its actions are
/// performed; else the rank departs from the plan, and whatever it unshards or
/// reduces until the next step is agreed on first.
class StepExecutor {
 public:
  /// All must outlive this object.
  StepExecutor(
      PagerContext& context,
      StepPlanner& planner,
      Unsharder& unsharder,
      GradientReducer& reducer,
      GradientAgreement& agreement)
      : context_(context),
        planner_(planner),
        unsharder_(unsharder),
        reducer_(reducer),
        agreement_(agreement) {}

  /// See PageFaultHandler::on_access().
  void on_access(c10::ArrayRef<PageAccess> accesses, const char* op_name);
  /// Autograd has accumulated into parameter.grad().
  void on_gradient(size_t parameter);

  /// See Pager::begin_next_step() and Pager::invalidate().
  void begin_next_step();
  void invalidate();

 private:
  void touch(std::vector<int> groups, const PageAccess& cause);
  /// Without a plan: unshards the pages that an operator uses.
  void serve(const std::vector<int>& groups);
  void enter_phase(PlanPhase phase);
  /// Performs the start actions of the phase's plan.
  void start_plan();
  /// Performs entries of the plan.
  /// @param wait_for_last an operator uses the pages of the last one.
  void follow(PlanCursor::Range range, bool wait_for_last);
  /// @param entry the plan's entry that it belongs to.
  void perform(
      const PlanAction& action,
      bool exposed,
      std::optional<size_t> entry = std::nullopt);
  void depart();
  void on_backward_end();
  /// Drops pages and gradients.
  /// @param why for the error when a page is held.
  void drop_values(const char* why);

  PagerContext& context_;
  StepPlanner& planner_;
  Unsharder& unsharder_;
  GradientReducer& reducer_;
  GradientAgreement& agreement_;
  /// Number, in autograd, of the backward at whose end gradients are flushed.
  int backward_to_flush_ = -1;
};

} // namespace tessera::sharding
