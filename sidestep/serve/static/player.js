// Time: a trajectory played, stopped, and gone through step by step.

export const SPEEDS = [0.25, 0.5, 1, 2, 4, 8];
const SECONDS = 6; // that a trajectory takes at speed 1
const SLOWEST = 3; // steps a second at speed 1, at least

export class Player {
  constructor(length, changed) {
    this.length = length;
    this.changed = changed;
    this.moment = 0;
    this.playing = false;
    this.speed = Number(localStorage.getItem("sidestep-speed")) || 1;
    this.frame = (now) => this._frame(now);
  }

  get last() { return this.length - 1; }
  get step() { return Math.min(Math.floor(this.moment + 1e-6), this.last); }

  go(moment) {
    this.moment = Math.max(0, Math.min(moment, this.last));
    this.changed(this);
  }

  /** One or more whole steps; playing stops. */
  move(steps) {
    this.pause();
    this.go(this.step + steps);
  }

  toggle() { if (this.playing) this.pause(); else this.play(); }

  play() {
    if (this.moment >= this.last) this.moment = 0;
    this.playing = true;
    this.then = null;
    requestAnimationFrame(this.frame);
    this.changed(this);
  }

  pause() {
    if (!this.playing) return;
    this.playing = false;
    this.moment = this.step;
    this.changed(this);
  }

  faster(by) {
    const place = Math.max(0, Math.min(SPEEDS.indexOf(this.speed) + by, SPEEDS.length - 1));
    this.setSpeed(SPEEDS[place]);
  }

  setSpeed(speed) {
    this.speed = speed;
    localStorage.setItem("sidestep-speed", speed);
    this.changed(this);
  }

  _frame(now) {
    if (!this.playing) return;
    const rate = Math.max(this.length / SECONDS, SLOWEST) * this.speed;
    if (this.then !== null) this.moment += ((now - this.then) / 1000) * rate;
    this.then = now;
    if (this.moment >= this.last) {
      this.moment = this.last;
      this.playing = false;
    }
    this.changed(this);
    if (this.playing) requestAnimationFrame(this.frame);
  }
}
