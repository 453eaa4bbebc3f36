// What became of the calls of an operator, and why: for whoever asks.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <map>
#include <string>
#include <tuple>

#include "call.hpp"

namespace recurra {

// Of the calls of an operator for one reason.
struct Fate {
  std::uint64_t calls = 0;
  double us = 0;  // the caller's, waiting and running
};

inline std::map<std::tuple<std::string, std::string, std::string>, Fate> fates;  // operator, what, why
inline bool explains = false;

// One more call, if somebody wants to know: until it goes out of scope is its caller's time.
class Told {
 public:
  Told(const c10::OperatorHandle& op, const char* what, const char* why) {
    if (!explains) return;
    fate_ = &fates[{c10::toString(op.operator_name()), what, why}];
    ++fate_->calls;
    begin_ = Clock::now();
  }
  ~Told() {
    if (fate_) fate_->us += us_since(begin_);
  }
  Told(const Told&) = delete;
  Told& operator=(const Told&) = delete;

 private:
  Fate* fate_ = nullptr;
  Clock::time_point begin_;
};

}  // namespace recurra
