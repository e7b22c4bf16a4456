import { connect as dial, createServer, type AddressInfo, type Server, type Socket } from "node:net";

/** A TCP proxy in front of the server that breaks on command. */
export class Proxy {
  connections = 0;
  refusing = false;
  readonly #server: Server;
  #open: { near: Socket; far: Socket; muted: boolean }[] = [];

  private constructor(target: string) {
    const [, host, port] = /([^/]+):(\d+)$/.exec(target)!;
    this.#server = createServer((near) => {
      near.on("error", () => {});
      if (this.refusing) return near.destroy();
      this.connections++;
      const far = dial(Number(port), host);
      const pair = { near, far, muted: false };
      this.#open.push(pair);
      far.on("error", () => near.destroy());
      near.on("data", (bytes) => far.write(bytes)).on("close", () => far.destroy());
      far.on("data", (bytes) => void (pair.muted || near.write(bytes))).on("close", () => near.destroy());
    });
  }

  /** Starts one that ends with the test. */
  static async start(test: { after(fn: () => void): void }, target: string): Promise<Proxy> {
    const proxy = new Proxy(target);
    await new Promise<void>((resolve) => proxy.#server.listen(0, "127.0.0.1", resolve));
    test.after(() => {
      proxy.#server.close();
      proxy.cut();
    });
    return proxy;
  }

  get address(): string {
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Keeps back what the server says on the present connections, until they are cut. */
  swallow(): void {
    for (const pair of this.#open) pair.muted = true;
  }

  /** Closes the present connections. */
  cut(): void {
    for (const { near } of this.#open) near.destroy();
    this.#open = [];
  }
}
