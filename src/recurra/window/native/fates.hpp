// Statistics of calls by operator, by the way they ran, and by the reason, for explain=True.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <map>
#include <string>
#include <tuple>

#include "call.hpp"

namespace recurra {

// The calls of an operator for one reason.
struct Fate {
  std::uint64_t calls = 0;
  double us = 0;  // time of the caller, waiting and running
};

inline std::map<std::tuple<std::string, std::string, std::string>, Fate> fates;  // operator, what, why
inline bool explains = false;

// Counts a call, if `explains`, with the caller's time until the end of the scope.
class FateTimer {
 public:
  FateTimer(const c10::OperatorHandle& op, const char* what, const char* why) {
    if (!explains) return;
    fate_ = &fates[{c10::toString(op.operator_name()), what, why}];
    ++fate_->calls;
    begin_ = Clock::now();
  }
  ~FateTimer() {
    if (fate_) fate_->us += us_since(begin_);
  }
  FateTimer(const FateTimer&) = delete;
  FateTimer& operator=(const FateTimer&) = delete;

 private:
  Fate* fate_ = nullptr;
  Clock::time_point begin_;
};

}  // namespace recurra
