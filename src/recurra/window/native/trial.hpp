// The A/B trial of the window by the clock, as in window/ab_trial.py.
#pragma once

#include <algorithm>

namespace recurra {

class Trial {
 public:
  static constexpr int kLeast = 2, kMost = 6, kAlike = 3;      // stretches each way
  static constexpr double kClear = 1.15, kWorth = 1.04;        // times slower, faster
  static constexpr double kHopeless = 1.5;                      // times slower: one each way
  static constexpr double kPause = 20, kSoon = 8;               // times the duration of a trial: off, on
  static constexpr double kLoss = 50, kLongest = 600;           // times the time lost in a trial; seconds

  // Returns whether the next stretch goes through the window.
  bool next(double now) {
    if (decided_ && now >= until_) restart();
    if (decided_) return verdict_;
    return on_ < off_;
  }

  bool examining() const { return !decided_; }
  double gain() const { return gain_; }
  double until() const { return until_; }

  // Records a stretch that took so many seconds for so much work.
  void done(bool on, double seconds, double work, double now) {
    const double rate = seconds / work;
    if (decided_) {
      watch(on, rate, now);
      return;
    }
    (on ? on_ : off_) += 1;
    double& best = on ? best_on_ : best_off_;
    best = std::min(best, rate);
    spent_ += seconds;
    if (on) {
      lost_ += std::max(0.0, seconds - work * best_off_);
      won_ += rate < last_off_;
    } else {
      last_off_ = rate;
    }
    if (on_ != off_) return;
    gain_ = best_off_ / best_on_;
    if (on_ < kLeast) {
      if (gain_ * kHopeless < 1) decide(false, now);
      return;
    }
    const bool mostly = 3 * won_ >= 2 * on_;
    const bool never = !mostly && on_ >= kAlike && gain_ < 1;
    const bool surely = won_ == on_ && on_ >= kAlike && gain_ >= kClear;
    const bool enough = gain_ * kClear < 1 || never || surely || on_ == kMost;
    if (enough) decide(gain_ >= kWorth && mostly, now);
  }

  // Turns the window off without a trial.
  void refuse(double now) { decide(false, now); }

 private:
  // Restarts the trial if the window is slower than without it, twice in a row.
  void watch(bool on, double rate, double now) {
    slow_ = on && verdict_ && rate * kWorth > best_off_ ? slow_ + 1 : 0;
    if (slow_ >= 2) until_ = now;
  }

  void restart() {
    decided_ = false;
    on_ = off_ = slow_ = won_ = 0;
    best_on_ = best_off_ = kNever;
    spent_ = lost_ = 0;
  }

  void decide(bool verdict, double now) {
    const bool again = asked_ && verdict == verdict_;
    doubling_ = again ? std::min(2 * doubling_, 4096.0) : 1;
    const double times = (verdict ? kSoon : kPause) * doubling_;
    const double pause = std::max(times * spent_, verdict ? 0.0 : kLoss * lost_);
    until_ = now + std::min(std::max(pause, (verdict ? 0.1 : 0.5) * doubling_), kLongest);
    verdict_ = verdict;
    decided_ = asked_ = true;
  }

  static constexpr double kNever = 1e300;
  bool decided_ = false, verdict_ = false, asked_ = false;
  int on_ = 0, off_ = 0, slow_ = 0, won_ = 0;
  double best_on_ = kNever, best_off_ = kNever, last_off_ = 0;
  double spent_ = 0, lost_ = 0, until_ = 0, doubling_ = 1, gain_ = 0;
};

}  // namespace recurra
